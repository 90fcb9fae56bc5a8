//! What a resource and a kind are called.

use std::borrow::Cow;
use std::fmt;

type Text = Cow<'static, str>;

/// Group, version and resource (plural, lower case): what a URL names. The core group is `""`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gvr {
    pub group: Text,
    pub version: Text,
    pub resource: Text,
}

/// Group, version and kind: what `apiVersion` and `kind` name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gvk {
    pub group: Text,
    pub version: Text,
    pub kind: Text,
}

impl Gvr {
    pub const fn core(resource: &'static str) -> Gvr {
        Gvr::new("", "v1", resource)
    }
    pub const fn new(group: &'static str, version: &'static str, resource: &'static str) -> Gvr {
        Gvr {
            group: Cow::Borrowed(group),
            version: Cow::Borrowed(version),
            resource: Cow::Borrowed(resource),
        }
    }
    /// `pods`, `deployments.apps`: how upstream's messages name a resource.
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_string()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }
    /// `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }
}

impl Gvk {
    pub const fn new(group: &'static str, version: &'static str, kind: &'static str) -> Gvk {
        Gvk { group: Cow::Borrowed(group), version: Cow::Borrowed(version), kind: Cow::Borrowed(kind) }
    }
    /// From `apiVersion` and `kind`; `None` when `apiVersion` has more than one slash.
    pub fn parse(api_version: &str, kind: &str) -> Option<Gvk> {
        let (group, version) = match api_version.split_once('/') {
            Some((_, version)) if version.contains('/') => return None,
            Some((group, version)) => (group, version),
            None => ("", api_version),
        };
        Some(Gvk {
            group: Cow::Owned(group.to_owned()),
            version: Cow::Owned(version.to_owned()),
            kind: Cow::Owned(kind.to_owned()),
        })
    }
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }
}

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

impl fmt::Display for Gvr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.api_version(), self.resource)
    }
}

/// As Go prints it, since that is what users have learnt to search for: `apps/v1, Kind=Deployment`.
impl fmt::Display for Gvk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Kind={}", self.api_version(), self.kind)
    }
}
