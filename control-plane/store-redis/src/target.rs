//! Making connections, however the servers are organised.

use std::fmt;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
    Pipeline, RedisError, RedisFuture, RedisResult, TlsMode, Value,
};
use tidegate_core::ids::Shard;

use crate::config::{RedisConfig, RedisConfigError, RedisLimits, RedisMode};
use crate::keys;

/// Where the servers are.
#[derive(Clone)]
pub(crate) enum Target {
    Single(ConnectionInfo),
    Sentinel {
        sentinels: Vec<ConnectionInfo>,
        service: String,
        node: Option<ConnectionInfo>,
    },
    Cluster(Vec<ConnectionInfo>),
}

/// A connection for calls. Clones share it.
#[derive(Clone)]
pub(crate) enum Connection {
    Node(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Target {
    pub(crate) fn new(config: &RedisConfig) -> Result<Self, RedisConfigError> {
        let infos: Vec<_> = config.parse()?.into_iter().map(at_once).collect();
        match &config.mode {
            RedisMode::Single => {
                let first = infos.into_iter().next().ok_or(RedisConfigError::NoUrl)?;
                Ok(Self::Single(first))
            }
            RedisMode::Sentinel { service, node_url } => {
                let node = node_url
                    .as_deref()
                    .map(|url| {
                        url.into_connection_info()
                            .map_err(|_| RedisConfigError::NodeUrl)
                    })
                    .transpose()?;
                Ok(Self::Sentinel {
                    sentinels: infos,
                    service: service.clone(),
                    node,
                })
            }
            RedisMode::Cluster => Ok(Self::Cluster(infos)),
        }
    }

    /// A connection for calls to all shards. The caller limits the time.
    pub(crate) async fn connect(&self, limits: &RedisLimits) -> RedisResult<Connection> {
        // Each call has its own limit; this is for one that nobody waits for any more.
        let answer = limits.call.max(limits.read);
        if let Self::Cluster(nodes) = self {
            let client = redis::cluster::ClusterClient::builder(nodes.iter().cloned())
                .connection_timeout(limits.connect)
                .response_timeout(answer)
                .overall_response_timeout(Some(answer))
                .retries(3)
                .min_retry_wait(millis(limits.pause_min))
                .max_retry_wait(millis(limits.pause_max))
                .build()?;
            return client.get_async_connection().await.map(Connection::Cluster);
        }
        let client = self.node().await?;
        let config = connection_config(limits.connect, answer);
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map(Connection::Node)
    }

    /// A connection of its own to the server that has this shard, for calls that block. The caller limits the time.
    pub(crate) async fn connect_to_shard(
        &self,
        shard: Shard,
        connect: Duration,
        answer: Duration,
    ) -> RedisResult<MultiplexedConnection> {
        let config = connection_config(connect, answer);
        let Self::Cluster(nodes) = self else {
            let client = self.node().await?;
            return client
                .get_multiplexed_async_connection_with_config(&config)
                .await;
        };
        let mut failure = no_server();
        for node in nodes {
            match connect_to_owner(node, shard, &config).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Shards that one blocking call can follow together.
    pub(crate) fn shards_followed_together(&self) -> Vec<Vec<Shard>> {
        match self {
            Self::Single(_) | Self::Sentinel { .. } => vec![Shard::all().collect()],
            Self::Cluster(_) => Shard::all().map(|shard| vec![shard]).collect(),
        }
    }

    /// The one server there is, or that the sentinels name now.
    async fn node(&self) -> RedisResult<Client> {
        match self {
            Self::Single(info) => Client::open(info.clone()),
            Self::Sentinel {
                sentinels,
                service,
                node,
            } => {
                let mut node_info =
                    SentinelNodeConnectionInfo::default().set_tcp_settings(tcp_settings());
                if let Some(node) = node {
                    node_info = node_info.set_redis_connection_info(node.redis_settings().clone());
                    if let ConnectionAddr::TcpTls { insecure, .. } = node.addr() {
                        node_info = node_info.set_tls_mode(if *insecure {
                            TlsMode::Insecure
                        } else {
                            TlsMode::Secure
                        });
                    }
                }
                SentinelClient::build(
                    sentinels.clone(),
                    service,
                    Some(node_info),
                    SentinelServerType::Master,
                )?
                .async_get_client()
                .await
            }
            Self::Cluster(_) => Err(no_server()),
        }
    }
}

/// Connects to the node that has the shard; any node knows which that is.
async fn connect_to_owner(
    node: &ConnectionInfo,
    shard: Shard,
    config: &AsyncConnectionConfig,
) -> RedisResult<MultiplexedConnection> {
    let mut connection = Client::open(node.clone())?
        .get_multiplexed_async_connection_with_config(config)
        .await?;
    let asked: RedisResult<Value> = redis::cmd("EXISTS")
        .arg(keys::meta(shard))
        .query_async(&mut connection)
        .await;
    let error = match asked {
        Ok(_) => return Ok(connection),
        Err(error) => error,
    };
    let Some(owner) = error
        .redirect_node()
        .and_then(|(address, _)| moved_to(node, address))
    else {
        return Err(error);
    };
    Client::open(owner)?
        .get_multiplexed_async_connection_with_config(config)
        .await
}

/// The node at another address, reached like this one. A node that does not know its own name leaves it out.
fn moved_to(node: &ConnectionInfo, address: &str) -> Option<ConnectionInfo> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let moved = match node.addr() {
        ConnectionAddr::Tcp(seed, _) => {
            ConnectionAddr::Tcp(if host.is_empty() { seed } else { host }.to_owned(), port)
        }
        ConnectionAddr::TcpTls {
            host: seed,
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host: if host.is_empty() { seed } else { host }.to_owned(),
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => return None,
    };
    Some(node.clone().set_addr(moved))
}

fn connection_config(connect: Duration, answer: Duration) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(connect))
        .set_response_timeout(Some(answer))
}

fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// Nothing waits for more bytes before it is sent.
fn at_once(info: ConnectionInfo) -> ConnectionInfo {
    info.set_tcp_settings(tcp_settings())
}

fn no_server() -> RedisError {
    (
        redis::ErrorKind::InvalidClientConfig,
        "no redis server is configured",
    )
        .into()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Node(connection) => connection.req_packed_command(cmd),
            Self::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Node(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Node(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}

// Connection infos hold passwords.
impl fmt::Debug for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mode, infos) = match self {
            Self::Single(info) => ("Single", std::slice::from_ref(info)),
            Self::Sentinel { sentinels, .. } => ("Sentinel", sentinels.as_slice()),
            Self::Cluster(nodes) => ("Cluster", nodes.as_slice()),
        };
        let mut list = formatter.debug_tuple(mode);
        for info in infos {
            list.field(&format_args!("{}", info.addr()));
        }
        list.finish()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Node(_) => "Node",
            Self::Cluster(_) => "Cluster",
        })
    }
}
