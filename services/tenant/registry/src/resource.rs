//! One resource in one version, as everything above the store names it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use api_kinds::ResourceInfo;

use crate::custom::CustomResource;
use crate::kinds;
use crate::strategy::Strategy;

/// A handle that is cheap to clone: built in, or made by a CustomResourceDefinition. Derefs to what both have.
///
/// A handle on a custom resource stays good after its definition has changed or gone; it is of the cluster as
/// it was when the request looked it up.
#[derive(Clone)]
pub struct Resource(Inner);

#[derive(Clone)]
enum Inner {
    BuiltIn(&'static ResourceInfo),
    Custom(Arc<CustomResource>),
}

impl Resource {
    /// What a CustomResourceDefinition says about it; `None` for what is built in.
    pub fn custom(&self) -> Option<&CustomResource> {
        match &self.0 {
            Inner::BuiltIn(_) => None,
            Inner::Custom(custom) => Some(custom),
        }
    }
    pub(crate) fn strategy(&self) -> &dyn Strategy {
        match &self.0 {
            Inner::BuiltIn(info) => kinds::strategy(info),
            Inner::Custom(custom) => &**custom,
        }
    }
}

impl Deref for Resource {
    type Target = ResourceInfo;
    fn deref(&self) -> &ResourceInfo {
        match &self.0 {
            Inner::BuiltIn(info) => info,
            Inner::Custom(custom) => custom.info(),
        }
    }
}

impl From<&'static ResourceInfo> for Resource {
    fn from(info: &'static ResourceInfo) -> Resource {
        Resource(Inner::BuiltIn(info))
    }
}
impl From<Arc<CustomResource>> for Resource {
    fn from(custom: Arc<CustomResource>) -> Resource {
        Resource(Inner::Custom(custom))
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.gvr)
    }
}
