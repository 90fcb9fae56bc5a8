//! Connections to cells, over which everything is asked of them.
//!
//! Not here: which cell to ask and what (`replicas`, `lifecycle`, `observe`).

use std::collections::HashMap;
use std::time::Duration;

use base_ids::CellId;
use base_net::pki::Issued;
use fleet_rpc::cell_client::CellClient;
use parking_lot::Mutex;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::db::CellRow;

/// A cell that has not answered by then is treated as away; the driver asks again.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A cell that listens takes a connection at once, and of one that does not another replica is asked.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// One connection per cell, made on first use and kept.
pub(crate) struct Cells {
    tls: ClientTlsConfig,
    channels: Mutex<HashMap<CellId, Channel>>,
}

impl Cells {
    pub(crate) fn new(ca_pem: &str, identity: &Issued) -> Cells {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(ca_pem))
            .identity(Identity::from_pem(&identity.cert_pem, &identity.key_pem))
            .domain_name("cell");
        Cells { tls, channels: Mutex::default() }
    }

    /// A client of this cell; nothing is sent before its first call.
    pub(crate) fn client(&self, cell: &CellRow) -> Result<CellClient<Channel>, tonic::transport::Error> {
        if let Some(channel) = self.channels.lock().get(&cell.id) {
            return Ok(CellClient::new(channel.clone()));
        }
        let channel = Endpoint::from_shared(format!("https://{}", cell.rpc_address))?
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(CALL_TIMEOUT)
            .tls_config(self.tls.clone())?
            .connect_lazy();
        self.channels.lock().insert(cell.id, channel.clone());
        Ok(CellClient::new(channel))
    }

    /// The cell has another address now.
    pub(crate) fn moved(&self, id: CellId) {
        self.channels.lock().remove(&id);
    }
}
