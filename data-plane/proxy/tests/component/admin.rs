//! The process's own paths.

use std::sync::Arc;

use tidegate_proxy::{Limits, Surface};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::bench::{Bench, LIMIT, Options};
use crate::client::Client;

#[tokio::test]
async fn clients_cannot_use_up_the_connections_for_probes() {
    let bench = Bench::start_with(Options {
        limits: Limits {
            max_connections: 1,
            ..Default::default()
        },
        ..Options::default()
    })
    .await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = Client::new(listener.local_addr().unwrap(), "none");
    let serving = Arc::clone(&bench.proxy);
    bench
        .tasks
        .spawn(async move { serving.serve(listener, Surface::Admin).await });
    // The client keeps its connection, which is the only one.
    assert_eq!(bench.client.get("/livez").await.status, 200);
    let live = timeout(LIMIT, admin.get("/livez")).await;
    assert_eq!(live.expect("an answer").status, 200);
}
