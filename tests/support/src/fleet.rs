//! A whole fleet: Postgres, Redis, control planes and data planes as real processes.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::postgres::{Postgres, PostgresOptions};
use crate::process::{Finished, Process, ProcessBuilder};
use crate::redis::{Redis, RedisOptions};
use crate::scratch::ScratchDir;
use crate::{ReservedPort, bin_dir, eventually};

/// How long a process of the fleet may take to become ready.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// How long a run of `tidegatectl` may take.
const CTL_LIMIT: Duration = Duration::from_secs(30);

/// What administrators of the fleet show.
pub const ADMIN_TOKEN: &str = "test-admin-token-0123456789abcdef";
/// What data planes of the fleet show.
pub const DATA_PLANE_TOKEN: &str = "test-data-plane-token-0123456789ab";
/// The key that seals credentials.
const SEALING_KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// How large the fleet is and how its stores behave.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    /// Control-plane replicas.
    pub control_planes: usize,
    /// Data planes.
    pub data_planes: usize,
    /// Postgres.
    pub postgres: PostgresOptions,
    /// Redis.
    pub redis: RedisOptions,
    /// Further environment of every process.
    pub env: Vec<(String, String)>,
    /// Egress identities of the data planes, in order; those beyond have none.
    pub egress_ids: Vec<String>,
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            control_planes: 2,
            data_planes: 2,
            postgres: PostgresOptions::default(),
            redis: RedisOptions::default(),
            env: Vec::new(),
            egress_ids: Vec::new(),
        }
    }
}

/// One replica of the control plane.
#[derive(Debug)]
pub struct ControlPlane {
    /// Its process.
    pub process: Process,
    /// Where it speaks gRPC; stays the same when it is started again.
    pub grpc: SocketAddr,
    /// Where it has `/livez`, `/readyz` and `/metrics`.
    pub http: SocketAddr,
    /// Where it has the contract's management endpoints.
    pub api: SocketAddr,
    /// Nobody else's, also before it listens and while it is down.
    _ports: [ReservedPort; 3],
}

impl ControlPlane {
    async fn wait_until_alive(&self) -> Result<()> {
        let alive = self.process.wait_for_http(self.http, "/livez", READY_LIMIT);
        alive.await?;
        self.process.wait_for_tcp(self.grpc, READY_LIMIT).await
    }
}

/// One data plane.
#[derive(Debug)]
pub struct DataPlane {
    /// Its process.
    pub process: Process,
    /// Where clients connect; stays the same when it is started again.
    pub http: SocketAddr,
    /// Where it has `/livez`, `/readyz` and `/metrics`.
    pub admin: SocketAddr,
    /// Nobody else's, also before it listens and while it is down.
    _ports: [ReservedPort; 2],
}

/// A running fleet. Dropping it ends everything.
#[derive(Debug)]
pub struct Fleet {
    // Processes end before their stores.
    /// The data planes.
    pub data_planes: Vec<DataPlane>,
    /// The control planes.
    pub control_planes: Vec<ControlPlane>,
    /// The hot store.
    pub redis: Redis,
    /// The durable store.
    pub postgres: Postgres,
    /// The database in [`Fleet::postgres`].
    pub database: String,
    scratch: ScratchDir,
}

impl Fleet {
    /// Two control planes, two data planes.
    ///
    /// # Errors
    /// When something does not start.
    pub async fn start() -> Result<Self> {
        Self::start_with(FleetOptions::default()).await
    }

    /// Starts a fleet and waits until its control planes serve. Data planes become ready with the first
    /// configuration ([`Fleet::apply`]).
    ///
    /// # Errors
    /// When something does not start.
    pub async fn start_with(options: FleetOptions) -> Result<Self> {
        let (postgres, redis) = tokio::try_join!(
            Postgres::start_with(options.postgres.clone()),
            Redis::start_with(options.redis.clone())
        )?;
        let url = postgres.create_database().await?;
        let (_, path) = url.rsplit_once('/').context("the URL names no database")?;
        let database = path.split('?').next().unwrap_or(path).to_owned();
        let mut fleet = Self {
            data_planes: Vec::new(),
            control_planes: Vec::new(),
            redis,
            postgres,
            database,
            scratch: ScratchDir::new("fleet")?,
        };
        for number in 0..options.control_planes {
            let redis_url = fleet.redis.url();
            fleet.add_control_plane(number, &redis_url, &options.env)?;
        }
        for replica in &fleet.control_planes {
            replica.wait_until_alive().await?;
        }
        for number in 0..options.data_planes {
            let egress_id = options.egress_ids.get(number).map(String::as_str);
            fleet.add_data_plane(number, &options.env, egress_id)?;
        }
        for plane in &fleet.data_planes {
            plane.process.wait_for_tcp(plane.http, READY_LIMIT).await?;
        }
        Ok(fleet)
    }

    /// Starts one more replica of the control plane, which reaches Redis at `redis`: that of a
    /// [`crate::FaultProxy`]. Waits until it can serve. Data planes that run already do not know it.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn add_replica_over(&mut self, redis: SocketAddr) -> Result<()> {
        let url = self.redis.url_through(redis);
        self.add_control_plane(self.control_planes.len(), &url, &[])?;
        if let Some(replica) = self.control_planes.last() {
            replica.wait_until_alive().await?;
            let waiting = replica
                .process
                .wait_for_http(replica.http, "/readyz", READY_LIMIT);
            waiting.await?;
        }
        Ok(())
    }

    /// Starts one more data plane, which reaches the control plane at these addresses: those of
    /// [`crate::FaultProxy`]s. Waits until it is ready to serve.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn add_data_plane_over(&mut self, control_planes: &[SocketAddr]) -> Result<()> {
        self.start_data_plane(self.data_planes.len(), control_planes, &[], None)?;
        if let Some(plane) = self.data_planes.last() {
            let waiting = plane
                .process
                .wait_for_http(plane.admin, "/readyz", READY_LIMIT);
            waiting.await?;
        }
        Ok(())
    }

    fn add_control_plane(
        &mut self,
        number: usize,
        redis_url: &str,
        env: &[(String, String)],
    ) -> Result<()> {
        let (grpc, http) = (ReservedPort::reserve()?, ReservedPort::reserve()?);
        let api = ReservedPort::reserve()?;
        let (grpc_addr, http_addr, api_addr) = (grpc.addr(), http.addr(), api.addr());
        let mut builder = ProcessBuilder::workspace_binary("tidegate-control-plane")?
            .named(format!("control-plane-{number}"))
            .args(["--grpc-listen", &grpc_addr.to_string()])
            .args(["--http-listen", &http_addr.to_string()])
            .args(["--api-listen", &api_addr.to_string()])
            .env("TIDEGATE_DATABASE_URL", self.postgres.url(&self.database))
            .env("TIDEGATE_REDIS_URL", redis_url)
            .env("TIDEGATE_SEALING_KEY", SEALING_KEY)
            .env("TIDEGATE_ADMIN_TOKEN", ADMIN_TOKEN)
            .env("TIDEGATE_DATA_PLANE_TOKEN", DATA_PLANE_TOKEN);
        for (name, value) in env {
            builder = builder.env(name, value);
        }
        self.control_planes.push(ControlPlane {
            process: builder.start()?,
            grpc: grpc_addr,
            http: http_addr,
            api: api_addr,
            _ports: [grpc, http, api],
        });
        Ok(())
    }

    fn add_data_plane(
        &mut self,
        number: usize,
        env: &[(String, String)],
        egress_id: Option<&str>,
    ) -> Result<()> {
        let control_planes: Vec<_> = self.control_planes.iter().map(|it| it.grpc).collect();
        self.start_data_plane(number, &control_planes, env, egress_id)
    }

    fn start_data_plane(
        &mut self,
        number: usize,
        control_planes: &[SocketAddr],
        env: &[(String, String)],
        egress_id: Option<&str>,
    ) -> Result<()> {
        let (http, admin) = (ReservedPort::reserve()?, ReservedPort::reserve()?);
        let (http_addr, admin_addr) = (http.addr(), admin.addr());
        let mut builder = ProcessBuilder::workspace_binary("tidegate-data-plane")?
            .named(format!("data-plane-{number}"))
            .args(["--listen", &http_addr.to_string()])
            .args(["--admin-listen", &admin_addr.to_string()])
            .env("TIDEGATE_DATA_PLANE_TOKEN", DATA_PLANE_TOKEN);
        for address in control_planes {
            builder = builder.args(["--control-plane", &format!("http://{address}")]);
        }
        for (name, value) in env {
            builder = builder.env(name, value);
        }
        if let Some(egress_id) = egress_id {
            builder = builder.args(["--egress-id", egress_id]);
        }
        self.data_planes.push(DataPlane {
            process: builder.start()?,
            http: http_addr,
            admin: admin_addr,
            _ports: [http, admin],
        });
        Ok(())
    }

    /// Applies a configuration through `tidegatectl` and waits until every process of the fleet uses it.
    ///
    /// # Errors
    /// When it is refused, with what `tidegatectl` said, or a data plane does not become ready.
    pub async fn apply(&self, yaml: &str) -> Result<Finished> {
        let file = self.scratch.path().join("tidegate.yaml");
        std::fs::write(&file, yaml)?;
        let file = file.to_str().context("the folder is not UTF-8")?;
        let applied = self.ctl(0, &["apply", "-f", file, "--prune"]).await?;
        ensure!(
            applied.status.success(),
            "apply failed: {}{}",
            applied.stdout,
            applied.stderr
        );
        let status = self.ctl_json(0, &["status"]).await?;
        let version = status["configurationVersion"]
            .as_u64()
            .context("the status names no version")?;
        self.wait_for_version(version).await?;
        self.wait_ready().await?;
        Ok(applied)
    }

    /// Waits until every process uses a version of the configuration.
    async fn wait_for_version(&self, version: u64) -> Result<()> {
        for replica in 0..self.control_planes.len() {
            eventually(
                READY_LIMIT,
                "the replica uses the configuration",
                || async {
                    let status = self.ctl_json(replica, &["status"]).await.ok()?;
                    (status["configurationVersion"] == version).then_some(())
                },
            )
            .await?;
        }
        let line = format!("\"configuration in force\",\"version\":{version},");
        for plane in &self.data_planes {
            plane.process.wait_for_log(&line, READY_LIMIT).await?;
        }
        Ok(())
    }

    /// Writes a secret into a file, for `credential: {file: NAME}` in [`Fleet::apply`].
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_secret(&self, file: &str, secret: &str) -> Result<()> {
        std::fs::write(self.scratch.path().join(file), secret)?;
        Ok(())
    }

    /// Waits until every data plane is ready to serve.
    ///
    /// # Errors
    /// When one does not become ready.
    pub async fn wait_ready(&self) -> Result<()> {
        for plane in &self.data_planes {
            plane
                .process
                .wait_for_http(plane.admin, "/readyz", READY_LIMIT)
                .await?;
        }
        Ok(())
    }

    /// Runs `tidegatectl` against one control plane.
    ///
    /// # Errors
    /// When it cannot be run or does not end.
    pub async fn ctl(&self, replica: usize, arguments: &[&str]) -> Result<Finished> {
        let replica = self
            .control_planes
            .get(replica)
            .context("no such control plane")?;
        ProcessBuilder::program("tidegatectl", bin_dir()?.join("tidegatectl"))
            .args(arguments)
            .env("TIDEGATE_CONTROL_PLANE", format!("http://{}", replica.grpc))
            .env("TIDEGATE_ADMIN_TOKEN", ADMIN_TOKEN)
            .run(CTL_LIMIT)
            .await
    }

    /// Runs `tidegatectl … -o json` against one control plane and reads what it prints.
    ///
    /// # Errors
    /// When it fails or prints no JSON.
    pub async fn ctl_json(&self, replica: usize, arguments: &[&str]) -> Result<serde_json::Value> {
        let finished = self
            .ctl(replica, &[arguments, &["-o", "json"]].concat())
            .await?;
        ensure!(
            finished.status.success(),
            "tidegatectl {arguments:?} failed: {}",
            finished.stderr
        );
        Ok(serde_json::from_str(&finished.stdout)?)
    }
}
