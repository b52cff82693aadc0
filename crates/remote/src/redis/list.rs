//! All entries of a server, or of the masters of a cluster, for operators' commands.
//!
//! Reads pages of a scan, as `KEYS` would hold up everybody. A key that is written meanwhile may come twice. Refuses a
//! cluster whose slots move meanwhile, as keys may be missed then.

use super::cluster::view;
use super::dial::{Connection, Dialer};
use super::nodes::View;
use super::open::server_error;
use super::script::{image_of, key_of};
use crate::engine::Cause;
use crate::image;
use crate::operators::{Listing, Page};
use crate::seed::Seed;
use crate::settings::{Address, Servers, Settings};
use crate::slots::slot;
use ::redis::{Cmd, Pipeline, Value, cmd};
use std::time::Duration;
use tidegate_store::Hashed;

/// The names that the server looks at for one page, about.
const PAGE: usize = 500;
/// What a page and its values may take, in bytes.
const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// The bytes of a value that are read. Longer ones are no counters; as in the script.
const KEPT: isize = 299;
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct List {
    connection: Connection,
    prefix: String,
    /// None before the first page of a server.
    cursor: Option<Vec<u8>>,
    cluster: Option<Masters>,
}

/// The masters of a cluster.
struct Masters {
    dialer: Dialer,
    /// The node that was asked for them.
    asked: Address,
    view: View,
    /// Those after the one that is read.
    rest: Vec<Address>,
}

impl List {
    pub(crate) async fn open(settings: &Settings) -> Result<List, Cause> {
        let dialer = Dialer::new(settings).map_err(|error| Cause::new(&error))?;
        let prefix = settings.prefix.clone();
        let Servers::Cluster { nodes } = &settings.servers else {
            let connection = in_time(dialer.dial()).await?;
            return Ok(List { connection, prefix, cursor: None, cluster: None });
        };
        let mut masters = Masters::find(dialer, nodes).await?;
        let connection = masters.next().await?.ok_or_else(|| Cause::new("no node has slots"))?;
        Ok(List { connection, prefix, cursor: None, cluster: Some(masters) })
    }

    async fn ask(&mut self, command: &Cmd) -> Result<Value, Cause> {
        let mut pipeline = Pipeline::with_capacity(1);
        pipeline.add_command(command.clone());
        let answer = self.ask_all(&pipeline, 1).await?.pop();
        match answer.unwrap_or(Value::Nil) {
            Value::ServerError(error) => Err(server_error(&error)),
            answer => Ok(answer),
        }
    }

    async fn ask_all(&mut self, pipeline: &Pipeline, count: usize) -> Result<Vec<Value>, Cause> {
        let Connection { commands, allowance, .. } = &mut self.connection;
        allowance.ask(PAGE_BYTES);
        let answers = in_time(async {
            let answers = commands.send_packed_commands(pipeline, 0, count).await;
            answers.map_err(|error| Cause::new(&error.to_string()))
        });
        let answers = answers.await;
        allowance.answered();
        answers
    }
}

impl Listing for List {
    async fn next(&mut self) -> Result<Option<Page>, Cause> {
        let cursor = match &self.cursor {
            None => b"0".to_vec(),
            Some(cursor) if cursor == b"0" => {
                let Some(masters) = &mut self.cluster else { return Ok(None) };
                let Some(next) = masters.next().await? else {
                    return masters.check().await.map(|()| None);
                };
                self.connection = next;
                b"0".to_vec()
            }
            Some(cursor) => cursor.clone(),
        };
        let mut scan = cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern(&self.prefix)).arg("COUNT").arg(PAGE);
        let (cursor, names) = match self.ask(&scan).await? {
            Value::Array(parts) => match <[Value; 2]>::try_from(parts) {
                Ok([Value::BulkString(cursor), Value::Array(names)]) => (cursor, names),
                _ => return Err(nonsense()),
            },
            _ => return Err(nonsense()),
        };
        self.cursor = Some(cursor);
        let keys: Vec<(Hashed, Vec<u8>)> = names
            .into_iter()
            .filter_map(|name| match name {
                Value::BulkString(name) => Some((key_of(&self.prefix, &name)?, name)),
                _ => None,
            })
            .collect();
        let mut page = Page::default();
        if keys.is_empty() {
            return Ok(Some(page));
        }
        let mut pipeline = Pipeline::with_capacity(keys.len());
        for (_, name) in &keys {
            pipeline.add_command(cmd("GETRANGE").arg(name).arg(0).arg(KEPT).clone());
        }
        let values = self.ask_all(&pipeline, keys.len()).await?;
        for ((key, _), value) in keys.iter().zip(values) {
            match value {
                // It has expired since.
                Value::BulkString(value) if value.is_empty() => {}
                Value::BulkString(value) => match image::decode(&image_of(&value), key.class) {
                    Some(entry) => page.entries.push((*key, entry)),
                    None => page.unreadable += 1,
                },
                _ => page.unreadable += 1,
            }
        }
        Ok(Some(page))
    }

    async fn set_seed(&mut self, seed: u64) -> Result<(), Cause> {
        let name = Seed::name(&self.prefix);
        if let Some(masters) = &self.cluster {
            self.connection = masters.of(slot(name.as_bytes())).await?;
        }
        let mut set = cmd("SET");
        set.arg(name).arg(Seed(seed).to_string());
        self.ask(&set).await.map(drop)
    }
}

impl Masters {
    /// Asks one of `nodes` for them.
    async fn find(dialer: Dialer, nodes: &[Address]) -> Result<Masters, Cause> {
        let mut cause = Cause::new("no address of a node is given");
        for asked in nodes {
            match look(&dialer, asked).await {
                Ok(view) => {
                    let mut rest: Vec<Address> = Vec::new();
                    for (_, master) in &view.slots {
                        if !rest.contains(master) {
                            rest.push(master.clone());
                        }
                    }
                    return Ok(Masters { dialer, asked: asked.clone(), view, rest });
                }
                Err(error) => cause = Cause::new(&format!("node {asked}: {error}")),
            }
        }
        Err(cause)
    }

    /// A connection to the next one. None after the last.
    async fn next(&mut self) -> Result<Option<Connection>, Cause> {
        let Some(address) = self.rest.pop() else { return Ok(None) };
        in_time(self.dialer.dial_node(&address)).await.map(Some)
    }

    /// A connection to the one with this slot.
    async fn of(&self, slot: usize) -> Result<Connection, Cause> {
        let found = self.view.slots.iter().find(|(slots, _)| slots.contains(&slot));
        let (_, address) = found.ok_or_else(|| Cause::new("no node has the slot of the seed"))?;
        in_time(self.dialer.dial_node(address)).await
    }

    /// Whether all have the slots that they had.
    async fn check(&self) -> Result<(), Cause> {
        let present = look(&self.dialer, &self.asked).await?;
        if owners(&present) == owners(&self.view) {
            return Ok(());
        }
        Err(Cause::new(
            "slots have moved between nodes meanwhile, so counters may be missing; run it again",
        ))
    }
}

async fn look(dialer: &Dialer, node: &Address) -> Result<View, Cause> {
    in_time(async {
        let mut connection = dialer.dial_node(node).await?;
        view(&mut connection, node).await
    })
    .await
}

/// The slots of each master, in order.
fn owners(view: &View) -> Vec<(usize, usize, String)> {
    let owner = |(slots, master): &(std::ops::RangeInclusive<usize>, Address)| {
        (*slots.start(), *slots.end(), master.to_string())
    };
    let mut owners: Vec<_> = view.slots.iter().map(owner).collect();
    owners.sort_unstable();
    owners
}

async fn in_time<T>(work: impl Future<Output = Result<T, Cause>>) -> Result<T, Cause> {
    let worked = tokio::time::timeout(TIMEOUT, work).await;
    worked.unwrap_or_else(|_| Err(Cause::new("the server does not answer")))
}

fn nonsense() -> Cause {
    Cause::new("the server answers SCAN with something else")
}

/// The names that begin with `prefix`, as a pattern.
fn pattern(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for char in prefix.chars() {
        if matches!(char, '*' | '?' | '[' | ']' | '^' | '\\') {
            pattern.push('\\');
        }
        pattern.push(char);
    }
    pattern.push('*');
    pattern
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn a_prefix_matches_itself_alone() {
        for (prefix, expected) in [("tidegate:", "tidegate:*"), ("a*[b]\\", "a\\*\\[b\\]\\\\*")] {
            assert_eq!(pattern(prefix), expected);
        }
    }
}
