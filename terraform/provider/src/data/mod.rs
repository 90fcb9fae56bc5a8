//! Every data source, one file each.

mod cluster;
mod kubeconfig;
mod versions;

use crate::resource::DataSource;

pub fn all() -> Vec<Box<dyn DataSource>> {
    vec![Box::new(cluster::Cluster), Box::new(kubeconfig::Kubeconfig), Box::new(versions::Versions)]
}
