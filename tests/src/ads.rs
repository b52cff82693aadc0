//! A server of the discovery protocol for rate limits, as Envoy Gateway has one: tests/clients/ads_server.py.

use crate::{artifacts, ports, wait};
use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

/// The longest pause of a client before it connects again.
const CONNECTS_AGAIN: Duration = Duration::from_secs(60);
/// How often one that found its port taken is started at another one.
const STARTS_MAX: usize = 3;

/// A running server; ends with its handle.
#[derive(Debug)]
pub struct AdsServer {
    child: Child,
    input: ChildStdin,
    requests: Arc<Mutex<Vec<Value>>>,
    /// Its port on loopback.
    pub port: u16,
}

impl AdsServer {
    /// Starts one at this port, 0 for any, with certificates of an authority, a server and its key.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(port: u16, tls: Option<[&Path; 3]>) -> anyhow::Result<AdsServer> {
        if port > 0 {
            return Self::start_at(port, tls).await;
        }
        // The system gives such a port to no connection, so the server can be started at it again.
        for _ in 1..STARTS_MAX {
            if let Ok(server) = Self::start_at(ports::free()?, tls).await {
                return Ok(server);
            }
        }
        Self::start_at(ports::free()?, tls).await
    }

    async fn start_at(port: u16, tls: Option<[&Path; 3]>) -> anyhow::Result<AdsServer> {
        let mut command = Command::new(artifacts::python()?);
        command.arg(artifacts::root().join("tests/clients/ads_server.py"));
        command.arg(format!("127.0.0.1:{port}"));
        if let Some(files) = tls {
            command.arg("--tls").args(files);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("cannot start the ADS server")?;
        let input = child.stdin.take().context("no standard input")?;
        let mut lines = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        let first = wait::within("the ADS server to start", wait::COMMAND, lines.next_line());
        let first = first.await??.context("the ADS server has ended")?;
        let port = serde_json::from_str::<Value>(&first)?["port"].as_u64().context("no port")?;
        let requests = Arc::new(Mutex::new(Vec::new()));
        let received = requests.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let request = serde_json::from_str(&line).unwrap_or(Value::Null);
                received.lock().unwrap_or_else(PoisonError::into_inner).push(request);
            }
        });
        Ok(AdsServer { child, input, requests, port: u16::try_from(port)? })
    }

    /// Gives clients these resources.
    ///
    /// # Errors
    /// When the server has ended.
    pub async fn set(&mut self, version: &str, resources: &Value) -> anyhow::Result<()> {
        self.send(&json!({"version": version, "resources": resources})).await
    }

    /// Gives clients what this line says.
    ///
    /// # Errors
    /// As [`AdsServer::set`].
    pub async fn send(&mut self, line: &Value) -> anyhow::Result<()> {
        Ok(self.input.write_all(format!("{line}\n").as_bytes()).await?)
    }

    /// The requests of clients so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a request that names this version as the one in force, and answers a response.
    ///
    /// # Errors
    /// When none comes, or it is a refusal.
    pub async fn accepted(&self, version: &str) -> anyhow::Result<Value> {
        let what = format!("version {version} to be accepted");
        let request =
            self.answer(&what, |request| request["version"] == version && request["nonce"] != "");
        let request = request.await?;
        ensure!(request["error"] == "", "refused: {request}");
        Ok(request)
    }

    /// Waits for a refusal, and returns it.
    ///
    /// # Errors
    /// When none comes.
    pub async fn refused(&self) -> anyhow::Result<Value> {
        self.answer("a refusal", |request| request["error"] != "").await
    }

    async fn answer(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        let found = async || self.requests().into_iter().rev().find(|request| is_it(request));
        let found = wait::until(what, CONNECTS_AGAIN, found).await;
        found.with_context(|| format!("requests: {:#?}", self.requests()))
    }

    /// Ends it, as a crash would.
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await?;
        Ok(())
    }
}

/// A descriptor with this limit, as its JSON.
#[must_use]
pub fn limit(key: &str, value: &str, unit: &str, requests: u32) -> Value {
    json!({"key": key, "value": value, "rate_limit": {"unit": unit, "requests_per_unit": requests}})
}

/// A descriptor that leads to others.
#[must_use]
pub fn level(key: &str, value: &str, below: &[Value]) -> Value {
    json!({"key": key, "value": value, "descriptors": below})
}

/// The limits of one domain, named like it.
#[must_use]
pub fn domain(name: &str, descriptors: &[Value]) -> Value {
    json!({"name": name, "domain": name, "descriptors": descriptors})
}
