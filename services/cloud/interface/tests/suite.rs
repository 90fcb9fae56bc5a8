//! The fake keeps the promises, by itself and over the wire.

use std::net::SocketAddr;
use std::sync::Arc;

use base_ids::TenantId;
use base_net::pki::{Ca, Issued, Profile, YEAR};
use base_net::tasks::Tasks;
use cloud_interface::fake::{Call, Fake};
use cloud_interface::suite::{self, Bench};
use cloud_interface::{Cloud, CloudError, Remote, TLS_NAME, serve};
use tokio::net::TcpListener;

fn issue(ca: &Ca, name: &str) -> Issued {
    ca.issue(&Profile {
        common_name: name.to_owned(),
        dns_names: vec![name.to_owned()],
        server: true,
        client: true,
        lifetime: YEAR,
        ..Profile::default()
    })
    .unwrap()
}

async fn over_the_wire(fake: &Fake, tasks: &Tasks) -> (Ca, SocketAddr, Remote) {
    let ca = Ca::generate("fleet").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    serve(listener, &issue(&ca, TLS_NAME), ca.cert_pem(), fake.shared(), tasks).unwrap();
    let remote = Remote::new(address, ca.cert_pem(), &issue(&ca, "cell")).unwrap();
    (ca, address, remote)
}

#[tokio::test]
async fn the_fake_keeps_the_promises() {
    let bench = Bench::new(Fake::new().shared());
    suite::machines(&bench).await;
    suite::balancers(&bench).await;
}

#[tokio::test]
async fn so_it_does_over_the_wire() {
    base_net::tls::install_crypto_provider();
    let (fake, tasks) = (Fake::new(), Tasks::new());
    let (_, _, remote) = over_the_wire(&fake, &tasks).await;
    let bench = Bench::new(Arc::new(remote));
    suite::machines(&bench).await;
    suite::balancers(&bench).await;
    assert!(fake.count(Call::CreateMachine) > 3);
    tasks.stop(std::time::Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_stranger_and_a_dead_provider() {
    base_net::tls::install_crypto_provider();
    let (fake, tasks) = (Fake::new(), Tasks::new());
    let (ca, address, remote) = over_the_wire(&fake, &tasks).await;
    remote.describe().await.unwrap();

    let foreign = Ca::generate("fleet").unwrap();
    let stranger = Remote::new(address, foreign.cert_pem(), &issue(&foreign, "cell")).unwrap();
    let error = stranger.describe().await.unwrap_err();
    assert!(matches!(error, CloudError::Unavailable(_)), "{error}");
    assert_eq!(fake.count(Call::Describe), 1);

    let gateway = Remote::new(address, ca.cert_pem(), &issue(&ca, "gateway")).unwrap();
    let error = gateway.describe().await.unwrap_err();
    assert!(error.to_string().contains("only cells"), "{error}");
    assert_eq!(fake.count(Call::Describe), 1);

    fake.fail(Call::ListMachines, CloudError::Exhausted("enough".to_owned()));
    let error = remote.list_machines(TenantId::generate()).await.unwrap_err();
    assert_eq!(error, CloudError::Exhausted("enough".to_owned()));

    tasks.stop(std::time::Duration::from_secs(5)).await;
    let error = remote.describe().await.unwrap_err();
    assert!(matches!(error, CloudError::Unavailable(_)), "{error}");
}
