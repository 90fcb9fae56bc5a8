//! Which cells answer: looked at four times a second, so that a dead one is passed over before a client
//! notices, and what hangs on it is let go.
//!
//! A cell that is gone refuses connections, and its own are reset. One that hangs, or whose machine vanished,
//! does neither: the kernel goes on accepting for the first, and nothing at all comes from the second. So a
//! cell is asked something that it answers before any cluster or key is looked at.
//!
//! Not here: where cells are (`routes`).

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::routes::Routes;

/// Between two looks at one cell.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A cell that has not answered by then is taken for dead.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// No TLS record begins like this, so a cell answers with an alert and closes.
const QUESTION: &[u8] = b"are you there?\n";

/// What is known of cells, by address. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Backends(Arc<Mutex<HashMap<SocketAddr, Backend>>>);

#[derive(Debug, Default)]
struct Backend {
    down: bool,
    /// Ends the connections to this cell; a new one for those that come after it is back.
    cut: CancellationToken,
}

impl Backends {
    /// `addresses` as they are to be tried: in their order, those known to be dead last.
    pub(crate) fn in_order(&self, addresses: &[SocketAddr]) -> Vec<SocketAddr> {
        let known = self.0.lock();
        let mut addresses = addresses.to_vec();
        addresses.sort_by_key(|address| known.get(address).is_some_and(|backend| backend.down));
        addresses
    }

    /// Resolves when the cell is found dead.
    pub(crate) fn dies(&self, address: SocketAddr) -> CancellationToken {
        self.0.lock().entry(address).or_default().cut.clone()
    }

    pub(crate) fn found(&self, address: SocketAddr, alive: bool) {
        let mut known = self.0.lock();
        let backend = known.entry(address).or_default();
        if alive == backend.down {
            tracing::info!(%address, alive, "a cell has changed");
        }
        backend.down = !alive;
        if !alive {
            std::mem::take(&mut backend.cut).cancel();
        }
    }
}

/// Looks at every cell of the table, for ever.
pub(crate) async fn watch(routes: Routes, backends: Backends) {
    let mut watched: HashMap<SocketAddr, tokio::task::AbortHandle> = HashMap::new();
    let mut table = routes.subscribe();
    let mut watching = tokio::task::JoinSet::new();
    loop {
        let wanted: HashSet<SocketAddr> = table.borrow_and_update().values().flatten().copied().collect();
        watched.retain(|address, task| {
            let keep = wanted.contains(address);
            if !keep {
                task.abort();
                backends.0.lock().remove(address);
            }
            keep
        });
        for address in wanted {
            let backends = backends.clone();
            watched.entry(address).or_insert_with(|| watching.spawn(look(address, backends)));
        }
        while watching.try_join_next().is_some() {}
        if table.changed().await.is_err() {
            return;
        }
    }
}

async fn look(address: SocketAddr, backends: Backends) {
    loop {
        let asked = tokio::time::timeout(ANSWER_WITHIN, ask(address)).await;
        backends.found(address, matches!(asked, Ok(Ok(()))));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn ask(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(QUESTION).await?;
    let mut answer = [0; 1];
    stream.read_exact(&mut answer).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn the_dead_are_tried_last_and_let_go() {
        let addresses: Vec<SocketAddr> =
            (1..4).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        let backends = Backends::default();
        let before = backends.dies(addresses[0]);
        assert_eq!(backends.in_order(&addresses), addresses);
        backends.found(addresses[0], false);
        assert!(before.is_cancelled());
        assert_eq!(backends.in_order(&addresses), [addresses[1], addresses[2], addresses[0]]);
        let after = backends.dies(addresses[0]);
        assert!(!after.is_cancelled(), "somebody tries it all the same");
        backends.found(addresses[0], true);
        assert!(!after.is_cancelled());
        assert_eq!(backends.in_order(&addresses), addresses);
    }

    #[tokio::test]
    async fn a_cell_that_hangs_is_found_dead_and_found_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Routes::load(std::path::Path::new("/nowhere/routes.json")).unwrap();
        routes.replace(HashMap::from([("c1".to_owned(), vec![address])]));
        let backends = Backends::default();
        let dies = backends.dies(address);
        let watching = tokio::spawn(watch(routes, backends.clone()));
        // The kernel accepts, nobody answers.
        tokio::time::timeout(Duration::from_secs(5), dies.cancelled()).await.expect("found dead");
        let answering = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                // Those that gave up meanwhile are in the queue too.
                let _ = stream.write_all(&[21, 3, 3, 0, 2, 2, 70]).await;
                let _ = stream.read(&mut [0; 64]).await;
            }
        });
        let back = async {
            while backends.0.lock()[&address].down {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), back).await.expect("found again");
        answering.abort();
        watching.abort();
    }
}
