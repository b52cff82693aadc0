//! A client of the rate limit service, and a short way to write what it asks and is answered.
//!
//! An ask is written as its descriptors, joined by ` & `, each as `key=value,key=value`:
//!
//! | written | is |
//! | --- | --- |
//! | `@shop user=a` | in domain `shop`; without it `test` |
//! | `3x user=a & tenant=t` | `hits_addend` 3 for the request; without it 0 |
//! | `user=a +5`, `user=a +0` | a descriptor with `hits_addend` 5; that asks without taking |
//! | `user=a -5`, `user=a -` | that gives back 5; or what the request says |
//! | `user=a 9/hour` | that brings its own limit along |
//!
//! An answer is written as the overall code and one status per descriptor:
//! `OVER: OK 3/5 per day (burst), OVER 0/9, OK unlimited, OK no limit`.

use crate::sidecar::Sidecar;
use crate::wait;
use anyhow::{Context, bail};
use std::path::Path;
use tidegate_wire::rls::{
    Code, DescriptorEntry, DescriptorStatus, RateLimitDescriptor, RateLimitOverride,
    RateLimitRequest, RateLimitResponse, RateLimitUnit,
};
use tidegate_wire::{RLS_METHOD, RLS_SERVICE};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// One connection to the service; clones share it.
#[derive(Clone, Debug)]
pub struct Rls(pub Channel);

impl Rls {
    /// Connects to the socket of the sidecar that was started in `dir`.
    ///
    /// # Errors
    /// When nothing listens there.
    pub async fn at(dir: &Path) -> anyhow::Result<Rls> {
        let uri = format!("unix:{}", Sidecar::socket(dir).display());
        let endpoint = Endpoint::from_shared(uri)?;
        Ok(Rls(wait::within("a connection", wait::SOON, endpoint.connect()).await??))
    }

    /// Asks.
    ///
    /// # Errors
    /// The status with which the service refuses, or the connection breaks.
    pub async fn call(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, tonic::Status> {
        let asking = async {
            let mut grpc = self.ready().await?;
            grpc.unary(tonic::Request::new(request), method(), ProstCodec::default()).await
        };
        let answered = wait::within("an answer", wait::ANSWER, asking).await;
        let answered = answered.map_err(|error| tonic::Status::cancelled(error.to_string()))?;
        Ok(answered?.into_inner())
    }

    /// A client that may begin a call.
    async fn ready(&self) -> Result<tonic::client::Grpc<Channel>, tonic::Status> {
        let mut grpc = tonic::client::Grpc::new(self.0.clone());
        grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        Ok(grpc)
    }

    /// Asks again while a busy machine keeps the service from a decision: a thread that holds the counter may be without
    /// a processor for longer than others wait, and many calls at once may be too many. Nothing is charged then.
    ///
    /// # Errors
    /// As [`Rls::call`].
    pub async fn decide(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, tonic::Status> {
        let mut looks = wait::looks();
        let deciding = async {
            loop {
                looks.tick().await;
                match self.call(request.clone()).await {
                    Err(status) if is_undecided(&status) => {}
                    decided => return decided,
                }
            }
        };
        let decided = wait::within("a decision", wait::SOON, deciding).await;
        decided.unwrap_or_else(|error| Err(tonic::Status::aborted(error.to_string())))
    }

    /// Begins a call whose message never comes. A call about these entries follows on the same connection, so its
    /// answer shows that the first one has arrived.
    ///
    /// # Errors
    /// As [`Rls::call`], for the second one.
    pub async fn hold(
        &self,
        about: &[(&str, &str)],
    ) -> Result<JoinHandle<Result<(), tonic::Status>>, tonic::Status> {
        let (begun, is_begun) = tokio::sync::oneshot::channel();
        let held = tokio::spawn({
            let rls = self.clone();
            async move {
                // A body is first looked at when its headers were sent.
                let mut begun = Some(begun);
                let nothing = std::iter::from_fn(move || {
                    begun.take().map(|begun| begun.send(()));
                    None::<RateLimitRequest>
                });
                let messages = tokio_stream::StreamExt::chain(
                    tokio_stream::iter(nothing),
                    tokio_stream::pending(),
                );
                let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
                let request = tonic::Request::new(messages);
                rls.ready().await?.client_streaming(request, method(), codec).await.map(|_| ())
            }
        });
        let begun = wait::within("a call to begin", wait::SOON, is_begun).await;
        begun.map_err(|error| tonic::Status::cancelled(error.to_string()))?.map_err(|_| {
            tonic::Status::cancelled("the call ended before its message was asked for")
        })?;
        self.ask(about).await?;
        Ok(held)
    }

    /// Asks domain `test` about descriptors of one entry each.
    ///
    /// # Errors
    /// As [`Rls::call`].
    pub async fn ask(&self, about: &[(&str, &str)]) -> Result<RateLimitResponse, tonic::Status> {
        self.call(request("test", about)).await
    }
}

/// Has all clients ask about one entry at once, each this many times; returns the number of allowed calls.
///
/// # Errors
/// As [`Rls::call`].
pub async fn allowed_at_once(
    clients: Vec<Rls>,
    calls: u32,
    entry: (&'static str, &'static str),
) -> anyhow::Result<u32> {
    let mut callers = tokio::task::JoinSet::new();
    for rls in clients {
        callers.spawn(async move {
            let mut allowed = 0;
            for _ in 0..calls {
                let answer = rls.decide(request("test", &[entry])).await?;
                allowed += u32::from(answer.overall_code() == Code::Ok);
            }
            anyhow::Ok(allowed)
        });
    }
    let mut allowed = 0;
    while let Some(caller) = callers.join_next().await {
        allowed += caller??;
    }
    Ok(allowed)
}

/// A request about descriptors of one entry each.
#[must_use]
pub fn request(domain: &str, about: &[(&str, &str)]) -> RateLimitRequest {
    let descriptor = |(key, value): &(&str, &str)| RateLimitDescriptor {
        entries: vec![entry(key, value)],
        ..Default::default()
    };
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: about.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

/// Whether the service had too much to do, or another thread held the counter.
fn is_undecided(status: &tonic::Status) -> bool {
    match status.code() {
        tonic::Code::Aborted => true,
        tonic::Code::ResourceExhausted => status.message() == "overloaded",
        _ => false,
    }
}

fn method() -> hyper::http::uri::PathAndQuery {
    format!("/{RLS_SERVICE}/{RLS_METHOD}").parse().expect("a path")
}

fn entry(key: &str, value: &str) -> DescriptorEntry {
    DescriptorEntry { key: key.to_owned(), value: value.to_owned() }
}

/// Reads an ask; the module's page has the words.
///
/// # Errors
/// When it is not written as that page says.
pub fn parse(ask: &str) -> anyhow::Result<RateLimitRequest> {
    let mut request = RateLimitRequest { domain: "test".to_owned(), ..Default::default() };
    let mut rest = ask;
    while let Some((word, after)) = rest.split_once(' ') {
        if let Some(domain) = word.strip_prefix('@') {
            request.domain = domain.to_owned();
        } else if let Some(hits) = word.strip_suffix('x').and_then(|hits| hits.parse().ok()) {
            request.hits_addend = hits;
        } else {
            break;
        }
        rest = after;
    }
    for written in rest.split(" & ") {
        let descriptor = parse_descriptor(written).with_context(|| format!("{ask:?}"))?;
        request.descriptors.push(descriptor);
    }
    Ok(request)
}

fn parse_descriptor(written: &str) -> anyhow::Result<RateLimitDescriptor> {
    let mut words = written.split(' ');
    let mut descriptor = RateLimitDescriptor::default();
    for pair in words.next().unwrap_or_default().split(',') {
        let (key, value) = pair.split_once('=').with_context(|| format!("no = in {pair:?}"))?;
        descriptor.entries.push(entry(key, value));
    }
    for word in words {
        if let Some(hits) = word.strip_prefix('+') {
            descriptor.hits_addend = Some(hits.parse()?);
        } else if let Some(hits) = word.strip_prefix('-') {
            descriptor.is_negative_hits = true;
            descriptor.hits_addend = if hits.is_empty() { None } else { Some(hits.parse()?) };
        } else if let Some((requests, unit)) = word.split_once('/') {
            let unit = UNITS.iter().find(|(name, _)| *name == unit);
            let (_, unit) = unit.with_context(|| format!("no unit in {word:?}"))?;
            let requests_per_unit = requests.parse()?;
            descriptor.limit = Some(RateLimitOverride { requests_per_unit, unit: (*unit).into() });
        } else {
            bail!("{word:?} says nothing");
        }
    }
    Ok(descriptor)
}

const UNITS: [(&str, RateLimitUnit); 7] = [
    ("second", RateLimitUnit::Second),
    ("minute", RateLimitUnit::Minute),
    ("hour", RateLimitUnit::Hour),
    ("day", RateLimitUnit::Day),
    ("week", RateLimitUnit::Week),
    ("month", RateLimitUnit::Month),
    ("year", RateLimitUnit::Year),
];

/// Writes an answer; the module's page has the words.
#[must_use]
pub fn summary(answer: &RateLimitResponse) -> String {
    let statuses: Vec<String> = answer.statuses.iter().map(status).collect();
    format!("{}: {}", code(answer.overall_code()), statuses.join(", "))
}

fn code(code: Code) -> &'static str {
    match code {
        Code::Unknown => "UNKNOWN",
        Code::Ok => "OK",
        Code::OverLimit => "OVER",
    }
}

fn status(status: &DescriptorStatus) -> String {
    let (code, left) = (code(status.code()), status.limit_remaining);
    let Some(limit) = &status.current_limit else {
        return match left {
            0 => format!("{code} no limit"),
            u32::MAX => format!("{code} unlimited"),
            left => format!("{code} {left} of no limit"),
        };
    };
    let unit = UNITS.iter().find(|(_, unit)| *unit == limit.unit());
    let unit = unit.map(|(name, _)| format!(" per {name}")).unwrap_or_default();
    let name = if limit.name.is_empty() { String::new() } else { format!(" ({})", limit.name) };
    format!("{code} {left}/{}{unit}{name}", limit.requests_per_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_are_read_as_written() -> anyhow::Result<()> {
        let mut expected = request("shop", &[("a", "x"), ("b", "")]);
        expected.hits_addend = 3;
        expected.descriptors[0].entries.push(entry("c", "y=z"));
        expected.descriptors[0].hits_addend = Some(0);
        expected.descriptors[1].is_negative_hits = true;
        expected.descriptors[1].limit = Some(RateLimitOverride { requests_per_unit: 9, unit: 7 });
        assert_eq!(parse("@shop 3x a=x,c=y=z +0 & b= - 9/week")?, expected);
        for wrong in ["a", "a=x b=y", "a=x 9/eon", "a=x +y"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        Ok(())
    }
}
