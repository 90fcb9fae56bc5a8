//! One call at a time per client token.
//!
//! EC2 promises one instance per token by itself; of the several calls behind a balancer only we can.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use base_ids::TenantId;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

type Key = (TenantId, String);

#[derive(Clone, Default)]
pub(crate) struct Locks(Arc<Mutex<HashMap<Key, Weak<tokio::sync::Mutex<()>>>>>);

impl Locks {
    /// Waits until nobody else works on it.
    pub(crate) async fn lock(&self, cluster: TenantId, token: &str) -> OwnedMutexGuard<()> {
        let mutex = {
            let mut held = self.0.lock();
            // What nobody holds or waits for is forgotten, so the table is as large as the work under way.
            held.retain(|_, mutex| mutex.strong_count() > 0);
            let key = (cluster, token.to_owned());
            match held.get(&key).and_then(Weak::upgrade) {
                Some(mutex) => mutex,
                None => {
                    let mutex = Arc::new(tokio::sync::Mutex::new(()));
                    held.insert(key, Arc::downgrade(&mutex));
                    mutex
                }
            }
        };
        mutex.lock_owned().await
    }
}
