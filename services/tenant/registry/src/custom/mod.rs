//! Custom resources: what a CustomResourceDefinition makes of the generic path.
//!
//! [`Catalogue`] is what a cluster's definitions come to. It is derived from the store, kept beside the state
//! of the collection it was made from and made anew, as far as definitions changed, by the first request that
//! finds that state moved: no task, no watch, and every replica serves what it has applied. `definition` reads
//! one definition, `strategy` is how its objects differ from built-in ones, `versions` is the way between the
//! version an object is stored in and the one it is asked for, `conversion` asks a webhook for that.
//!
//! Not here: schemas (`api-structural`), conditions and cleaning up behind a definition
//! (`tenant-controllers`), the definitions' own validation (`kinds/definitions.rs`).

mod catalogue;
mod conversion;
mod definition;
mod schema;
mod strategy;
mod versions;

pub use catalogue::Catalogue;
pub use definition::{CustomResource, Scale};
pub use schema::Schema;
pub(crate) use versions::Served;

/// The collection that definitions are stored in.
pub(crate) const DEFINITIONS: &str = "customresourcedefinitions";
