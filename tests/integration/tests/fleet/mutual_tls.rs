//! `tidegatectl` at a control plane that asks who calls for a certificate, reached under another name than its own.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tidegate_integration::LIMIT;
use tidegate_test_support::{
    ADMIN_TOKEN, Finished, Fleet, FleetOptions, ProcessBuilder, ScratchDir, bin_dir,
};

/// Whom the control plane's certificate is for; it is called by its address.
const NAME: &str = "control-plane.internal";

/// An authority in `ca.pem`, and a certificate with its key for each of these names.
fn write_certificates(folder: &Path, names: &[(&str, &str)]) -> Result<()> {
    let authority_key = KeyPair::generate()?;
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let signed = authority.self_signed(&authority_key)?;
    std::fs::write(folder.join("ca.pem"), signed.pem())?;
    let issuer = Issuer::new(authority, authority_key);
    for (file, name) in names {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(vec![(*name).to_owned()])?;
        let certificate = certificate.signed_by(&key, &issuer)?;
        std::fs::write(folder.join(format!("{file}.pem")), certificate.pem())?;
        std::fs::write(folder.join(format!("{file}.key")), key.serialize_pem())?;
    }
    Ok(())
}

struct Stage {
    folder: ScratchDir,
    tls: SocketAddr,
    _tls_fleet: Fleet,
    plain: SocketAddr,
    _plain_fleet: Fleet,
}

impl Stage {
    async fn start() -> Result<Self> {
        let folder = ScratchDir::new("mutual-tls")?;
        let names = [("server", NAME), ("operator", "operator.internal")];
        write_certificates(folder.path(), &names)?;
        let file = |name: &str| folder.path().join(name).display().to_string();
        let variable = |name: &str, path: &str| (name.to_owned(), file(path));
        let start = async |env| {
            Fleet::start_with(FleetOptions {
                control_planes: 1,
                data_planes: 0,
                env,
                ..FleetOptions::default()
            })
            .await
        };
        let tls_fleet = start(vec![
            variable("TIDEGATE_TLS_CERT_FILE", "server.pem"),
            variable("TIDEGATE_TLS_KEY_FILE", "server.key"),
            variable("TIDEGATE_TLS_CLIENT_CA_FILE", "ca.pem"),
        ]);
        let (tls_fleet, plain_fleet) = tokio::try_join!(tls_fleet, start(Vec::new()))?;
        let address = |fleet: &Fleet| fleet.control_planes.first().map(|it| it.grpc);
        let (tls, plain) = (address(&tls_fleet), address(&plain_fleet));
        Ok(Self {
            tls: tls.context("a control plane")?,
            plain: plain.context("a control plane")?,
            folder,
            _tls_fleet: tls_fleet,
            _plain_fleet: plain_fleet,
        })
    }

    fn path(&self, file: &str) -> String {
        self.folder.path().join(file).display().to_string()
    }

    async fn ctl(&self, arguments: &[&str]) -> Result<Finished> {
        ProcessBuilder::program("tidegatectl", bin_dir()?.join("tidegatectl"))
            .args(arguments)
            .env("TIDEGATE_CTL_CONFIG", self.path("ctl.yaml"))
            .env("TIDEGATE_ADMIN_TOKEN", ADMIN_TOKEN)
            .run(LIMIT)
            .await
    }

    /// Asks for the status over TLS with these flags besides; returns what is said when that fails.
    async fn fails(&self, address: &str, more: &[&str]) -> Result<String> {
        let always = ["status", "--control-plane", address];
        let finished = self.ctl(&[always.as_slice(), more].concat()).await?;
        ensure!(finished.status.code() == Some(69), "{finished:?}");
        Ok(finished.stderr)
    }
}

#[tokio::test]
async fn a_certificate_is_shown_and_another_name_is_verified_and_what_is_missing_is_named()
-> Result<()> {
    let stage = Stage::start().await?;
    let https = format!("https://{}", stage.tls);
    let (ca, cert, key) = (
        stage.path("ca.pem"),
        stage.path("operator.pem"),
        stage.path("operator.key"),
    );
    let all = [
        "--ca-file",
        &ca,
        "--cert-file",
        &cert,
        "--key-file",
        &key,
        "--tls-domain",
        NAME,
    ];
    let asked = ["status", "--control-plane", &https];
    let good = stage
        .ctl(&[asked.as_slice(), all.as_slice()].concat())
        .await?;
    ensure!(good.status.success(), "{good:?}");

    // A context keeps all of it.
    let set = ["context", "set", "far", "--control-plane", &https];
    let set = stage
        .ctl(&[set.as_slice(), all.as_slice()].concat())
        .await?;
    ensure!(set.status.success(), "{set:?}");
    let good = stage.ctl(&["status"]).await?;
    ensure!(good.status.success(), "{good:?}");
    ensure!(
        stage
            .ctl(&["context", "delete", "far"])
            .await?
            .status
            .success()
    );

    // Of what is missing, each is told.
    let said = stage.fails(&https, &all[..6]).await?;
    ensure!(said.contains("--tls-domain"), "{said}");
    let said = stage.fails(&https, &all[2..]).await?;
    ensure!(said.contains("--ca-file"), "{said}");
    let said = stage
        .fails(&https, &["--ca-file", &ca, "--tls-domain", NAME])
        .await?;
    ensure!(said.contains("--cert-file"), "{said}");
    let half = [asked.as_slice(), &all[..4]].concat();
    let half = stage.ctl(&half).await?;
    ensure!(half.status.code() == Some(64), "{half:?}");

    // The wrong scheme, both ways; and nobody there at all, of which no scheme is to blame.
    let said = stage.fails(&format!("http://{}", stage.tls), &[]).await?;
    ensure!(said.contains("https://"), "{said}");
    let said = stage
        .fails(&format!("https://{}", stage.plain), &[])
        .await?;
    ensure!(said.contains("begins with http://"), "{said}");
    let said = stage.fails("http://127.0.0.1:1", &[]).await?;
    ensure!(
        said.contains("refused") && !said.contains("https"),
        "{said}"
    );

    // What is no address is a fault of the command line, and no context takes it.
    for command in [
        ["status", "--control-plane", "control:7400"].as_slice(),
        &["context", "set", "bad", "--control-plane", "control:7400"],
    ] {
        let refused = stage.ctl(command).await?;
        ensure!(refused.status.code() == Some(64), "{refused:?}");
        ensure!(refused.stderr.contains("http://host:port"), "{refused:?}");
    }
    let none = stage.ctl(&["context", "list", "-o", "json"]).await?;
    ensure!(none.stdout.trim() == "[]", "{none:?}");
    Ok(())
}
