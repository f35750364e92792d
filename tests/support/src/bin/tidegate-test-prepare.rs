//! Makes what the first tests would otherwise wait for: the Postgres template and the Python environment.

use anyhow::Result;
use tidegate_test_support::{Postgres, PythonClients};

#[tokio::main]
async fn main() -> Result<()> {
    let (postgres, clients) = tokio::join!(Postgres::start(), PythonClients::prepare());
    postgres?;
    clients.map(drop)
}
