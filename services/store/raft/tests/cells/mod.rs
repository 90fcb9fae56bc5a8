//! Three cells in one process, whose messages can be lost, late, doubled and out of order.

#![allow(dead_code)] // each test binary uses its part

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base_ids::{CellId, TenantId};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use store_log::memory::{Crash, MemoryFiles};
use store_mvcc::{Command, Expect, Key, Op, Value};
use store_raft::{Group, Host, HostConfig, Standing, Transport, TransportError};

/// What lies between the cells.
#[derive(Default)]
pub struct Net {
    hosts: Mutex<HashMap<CellId, (Arc<Host>, u64)>>,
    /// From, to.
    cut: Mutex<HashSet<(CellId, CellId)>>,
    killed: Mutex<HashSet<u64>>,
    /// Messages to it arrive so late.
    slow: Mutex<HashMap<CellId, Duration>>,
    /// One message of so many is answered, and then arrives again, late.
    double_every: AtomicU64,
    /// One message of so many never arrives.
    lose_every: AtomicU64,
    sent: AtomicU64,
}

impl std::fmt::Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Net")
    }
}

impl Net {
    pub fn cut_off(&self, cell: CellId, others: &[CellId]) {
        let pairs = others.iter().filter(|other| **other != cell);
        self.cut.lock().extend(pairs.flat_map(|other| [(cell, *other), (*other, cell)]));
    }
    pub fn cut_one_way(&self, from: CellId, to: CellId) {
        self.cut.lock().insert((from, to));
    }
    pub fn heal(&self) {
        self.cut.lock().clear();
        self.slow.lock().clear();
        self.double_every.store(0, Ordering::Relaxed);
        self.lose_every.store(0, Ordering::Relaxed);
    }
    pub fn slow_down(&self, cell: CellId, by: Duration) {
        self.slow.lock().insert(cell, by);
    }
    pub fn double_and_lose(&self, double_every: u64, lose_every: u64) {
        self.double_every.store(double_every, Ordering::Relaxed);
        self.lose_every.store(lose_every, Ordering::Relaxed);
    }
    fn is_cut(&self, from: CellId, to: CellId) -> bool {
        self.cut.lock().contains(&(from, to))
    }
}

/// One cell's end of it.
#[derive(Debug)]
struct End {
    me: CellId,
    boot: u64,
    net: Arc<Net>,
}

impl End {
    /// A process that was killed says nothing more, even if what is left of it here would like to.
    fn is_dead(&self) -> bool {
        self.net.hosts.lock().get(&self.me).is_some_and(|(_, boot)| *boot != self.boot)
            || self.net.killed.lock().contains(&self.boot)
    }
}

impl Transport for End {
    fn call(
        &self,
        to: CellId,
        tenant: TenantId,
        message: Bytes,
    ) -> BoxFuture<'static, Result<Bytes, TransportError>> {
        let (net, me, dead) = (self.net.clone(), self.me, self.is_dead());
        async move {
            let unreachable = || TransportError::Unreachable { cell: to, reason: "it is gone".into() };
            let broken = |reason: &str| TransportError::Broken { cell: to, reason: reason.into() };
            let number = net.sent.fetch_add(1, Ordering::Relaxed);
            let happens = |every: &AtomicU64| {
                let every = every.load(Ordering::Relaxed);
                every > 0 && number.is_multiple_of(every)
            };
            if dead || net.is_cut(me, to) {
                return Err(unreachable());
            }
            let (host, boot) = net.hosts.lock().get(&to).cloned().ok_or_else(unreachable)?;
            let late = net.slow.lock().get(&to).copied();
            if let Some(late) = late {
                tokio::time::sleep(late).await;
            }
            if happens(&net.lose_every) {
                tokio::time::sleep(Duration::from_millis(20)).await;
                return Err(broken("lost"));
            }
            let answer = host.receive(tenant, me, &message).await;
            if happens(&net.double_every) {
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(30)).await;
                    host.receive(tenant, me, &message).await;
                });
            }
            if net.is_cut(to, me) || net.killed.lock().contains(&boot) {
                return Err(broken("the answer was lost"));
            }
            Ok(answer)
        }
        .boxed()
    }

    fn standing(&self, cell: CellId) -> Standing {
        if self.is_dead() || self.net.is_cut(self.me, cell) || self.net.is_cut(cell, self.me) {
            return Standing::Down;
        }
        match self.net.hosts.lock().get(&cell) {
            Some((_, boot)) => Standing::Up { boot: *boot },
            None => Standing::Down,
        }
    }
}

pub struct Cells {
    pub net: Arc<Net>,
    pub ids: Vec<CellId>,
    disks: Vec<(MemoryFiles, MemoryFiles)>,
    configure: fn(&mut HostConfig),
    boots: u64,
    pub tenant: TenantId,
}

impl Cells {
    /// Three cells with one group on all of them.
    pub async fn start(configure: fn(&mut HostConfig)) -> Cells {
        let mut ids: Vec<CellId> = (0..3).map(|_| CellId::generate()).collect();
        ids.sort();
        let disks = (0..3).map(|_| (MemoryFiles::new(), MemoryFiles::new())).collect();
        let mut cells =
            Cells { net: Arc::default(), ids, disks, configure, boots: 0, tenant: TenantId::generate() };
        for place in 0..3 {
            cells.boot(place).await;
        }
        let (tenant, ids) = (cells.tenant, cells.ids.clone());
        for place in [1, 2] {
            cells.host(place).join(tenant, &ids).await.expect("join");
        }
        cells.host(0).found(tenant, &ids, Command::default()).await.expect("found");
        cells
    }

    pub async fn boot(&mut self, place: usize) {
        self.boots += 1;
        let mut config = HostConfig::new(self.ids[place]);
        config.log.segment_bytes = 1 << 20;
        (self.configure)(&mut config);
        config.transport =
            Some(Arc::new(End { me: self.ids[place], boot: self.boots, net: self.net.clone() }));
        let (log, checkpoints) = &self.disks[place];
        let host = Host::open_on(Arc::new(log.clone()), Arc::new(checkpoints.clone()), config);
        let host = host.await.expect("open");
        self.net.hosts.lock().insert(self.ids[place], (host.clone(), self.boots));
        // A group with peers answers, and stands for election, once it is open.
        if host.tenants().contains(&self.tenant) {
            host.open_group(self.tenant).await.expect("the group opens");
        }
    }

    /// As kill -9 does, on a disk that may have torn what was not synced.
    pub async fn kill(&mut self, place: usize, crash: Crash) {
        let removed = self.net.hosts.lock().remove(&self.ids[place]);
        // Nothing it says from now on is heard, so what it promised is on the disk as it is copied.
        if let Some((_, boot)) = &removed {
            self.net.killed.lock().insert(*boot);
        }
        let (log, checkpoints) = &self.disks[place];
        let after = (log.crash(crash), checkpoints.crash(crash));
        self.disks[place] = after;
        if let Some((host, _)) = removed {
            // On the old disks, which nobody sees any more.
            host.close().await;
        }
    }

    pub async fn stop(&mut self, place: usize) {
        let host = self.host(place);
        host.close().await;
        self.net.hosts.lock().remove(&self.ids[place]);
    }

    pub fn host(&self, place: usize) -> Arc<Host> {
        self.net.hosts.lock()[&self.ids[place]].0.clone()
    }

    pub async fn group(&self, place: usize) -> Group {
        self.host(place).open_group(self.tenant).await.expect("the group")
    }

    /// Where the group is led, once it is.
    pub async fn leader(&self, among: &[usize]) -> usize {
        for _ in 0..400 {
            for place in among {
                if self.group(*place).await.leadership().borrow().is_some() {
                    return *place;
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nobody leads");
    }

    pub async fn close(self) {
        for place in 0..3 {
            let host = self.net.hosts.lock().remove(&self.ids[place]);
            if let Some((host, _)) = host {
                host.close().await;
            }
        }
    }
}

pub fn create(name: &str) -> Command {
    put(name, "x", Expect::Absent)
}

pub fn put(name: &str, body: &str, expect: Expect) -> Command {
    let value = Value { body: body.to_owned().into(), stamp: "s".into() };
    let key = Key::new("things", name);
    let op = Op::Put { key, value, expect, expires_at_ms: None, shared: false };
    Command { ops: vec![op], fence: None, at_ms: 0 }
}
