//! What is done with a message of a call: which method it is for, and the rate limit service itself.

use super::{Door, health, reflection};
use crate::clock;
use crate::engine::Engine;
use std::cell::RefCell;
use tidegate_core::{Answer, Descriptor, Direction, Request};
use tidegate_grpc::server::{Call, Outcome, Service};
use tidegate_grpc::{Code, Status};
use tidegate_store::UpdateError;
use tidegate_wire::{RequestReader, WireError, encode_answer, lease_ask_from, returned_from};

/// The path of the rate limit service's only method.
const SHOULD_RATE_LIMIT: &[u8] = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Messages of all other methods are names. What they are answered by may repeat them.
const RARE_MESSAGE_BYTES_MAX: usize = 4 * 1024;

/// What a refusal says of a path.
const PATH_BYTES_TOLD: usize = 128;

thread_local! {
    /// Keeps its buffers from call to call, of whichever connection.
    static READER: RefCell<RequestReader> = const { RefCell::new(RequestReader::new()) };
}

/// What becomes of rate limit calls, and of reflection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// They are decided.
    Decided,
    /// They are refused unread: there are more than can be decided in time.
    Shed,
}

/// The methods, for one turn of a connection.
pub(super) struct Methods<'a> {
    pub(super) door: &'a Door,
    pub(super) load: Load,
}

impl Service for Methods<'_> {
    fn answer(&mut self, call: &Call<'_>, answer: &mut Vec<u8>) -> Outcome {
        if call.path == SHOULD_RATE_LIMIT {
            return match self.load {
                Load::Decided => self.should_rate_limit(call, answer),
                Load::Shed => {
                    self.door.metrics.shed("grpc");
                    Outcome::Refused(Status::new(Code::ResourceExhausted, "overloaded"))
                }
            };
        }
        self.rare(call, answer)
    }
}

impl Methods<'_> {
    fn should_rate_limit(&self, call: &Call<'_>, answer: &mut Vec<u8>) -> Outcome {
        let value_of = |name| call.metadata.get(name);
        READER.with_borrow_mut(|reader| {
            let outcome = match decide(&self.door.engine, reader, call.message, value_of) {
                Ok((request, decided)) => {
                    let headers = self.door.replies.headers(request, &decided);
                    encode_answer(&decided, headers, answer);
                    Outcome::Unary
                }
                Err(refused) => {
                    self.door.metrics.refused();
                    if let Refused::Undecided(error) = &refused {
                        self.door.metrics.undecided(error);
                    }
                    Outcome::Refused(refused.into())
                }
            };
            reader.release();
            outcome
        })
    }

    /// All but the method that nearly all calls are for.
    #[cold]
    fn rare(&self, call: &Call<'_>, answer: &mut Vec<u8>) -> Outcome {
        if call.message.len() > RARE_MESSAGE_BYTES_MAX {
            let message = format!("a message is larger than {RARE_MESSAGE_BYTES_MAX} bytes");
            return Outcome::Refused(Status::new(Code::ResourceExhausted, message));
        }
        let told = call.path.get(..PATH_BYTES_TOLD).unwrap_or(call.path);
        let path = String::from_utf8_lossy(told);
        match path.strip_prefix('/').and_then(|path| path.split_once('/')) {
            Some((health::SERVICE, "Check")) => {
                health::check(call.message, &self.door.health, answer)
            }
            Some((health::SERVICE, "Watch")) => {
                health::watch(call.message, &self.door.health, answer)
            }
            Some((service, "ServerReflectionInfo")) if reflection::SERVICES.contains(&service) => {
                match self.load {
                    Load::Decided => reflection::answer(call.message, answer),
                    Load::Shed => {
                        Outcome::Refused(Status::new(Code::ResourceExhausted, "overloaded"))
                    }
                }
            }
            _ => {
                let message = format!("there is no method {path}");
                Outcome::Refused(Status::new(Code::Unimplemented, message))
            }
        }
    }
}

/// Why a call has no answer.
#[derive(Debug)]
enum Refused {
    /// It makes no sense.
    Invalid(String),
    /// The store could not be used.
    Undecided(UpdateError),
}

impl From<WireError> for Refused {
    fn from(error: WireError) -> Self {
        Refused::Invalid(error.to_string())
    }
}

impl From<UpdateError> for Refused {
    fn from(error: UpdateError) -> Self {
        Refused::Undecided(error)
    }
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Invalid(message) => {
                tracing::debug!(error = message, "refused a request");
                Status::new(Code::InvalidArgument, message)
            }
            Refused::Undecided(error) => {
                tracing::debug!(%error, "no decision");
                Status::new(code_of(&error), error.to_string())
            }
        }
    }
}

/// What clients go by when there is no decision. Ours has a mode for each: `failure_mode` for what no client
/// can bring about, `overload_mode` for the rest.
fn code_of(error: &UpdateError) -> Code {
    match error {
        // About these counters alone: others can be asked about.
        UpdateError::Busy { .. } => Code::Aborted,
        UpdateError::DataLoss => Code::DataLoss,
        _ => Code::ResourceExhausted,
    }
}

/// Decides what `message` asks; `value_of` has the call's metadata by name.
fn decide<'r, 'a>(
    engine: &Engine,
    reader: &'r mut RequestReader,
    message: &[u8],
    value_of: impl Fn(&'static str) -> Option<&'a [u8]>,
) -> Result<(&'r Request, Answer), Refused> {
    let request = reader.read(message)?;
    let descriptors = request.descriptors.len();
    if let Some(back) = returned_from(descriptors, &value_of)? {
        let takes = |descriptor: &Descriptor| descriptor.direction == Direction::Take;
        if let Some(index) = request.descriptors.iter().position(takes) {
            return Err(Refused::Invalid(format!(
                "descriptors[{index}]: a return (metadata tidegate-return) takes no hits; set \
                 is_negative_hits"
            )));
        }
        let answer = engine.give_back(request, &back, clock::now())?;
        return Ok((request, answer));
    }
    let answer = match lease_ask_from(descriptors, &value_of)? {
        Some(ask) => engine.decide_leasing(request, &ask, clock::now())?,
        None => engine.decide(request, clock::now())?,
    };
    Ok((request, answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Modes;
    use crate::metrics::Metrics;
    use crate::rules::{self, SameDomain};
    use prost::Message;
    use tidegate_core::Nanos;
    use tidegate_store::{Cluster, Geometry, Options};
    use tidegate_wire::rls::{
        Code as RlsCode, DescriptorEntry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
    };

    fn engine(dir: &tempfile::TempDir) -> Engine {
        let limits = dir.path().join("limits.yaml");
        let limit = "rate_limit: {unit: day, requests_per_unit: 100}";
        std::fs::write(&limits, format!("domain: d\ndescriptors:\n- {{key: k, {limit}}}")).unwrap();
        let rules = rules::load(&limits, SameDomain::Refuse).unwrap().rules;
        let options = Options::narrow(Geometry::by_capacity(64, 0.8).unwrap());
        let store = Cluster::open(&dir.path().join("data"), &options).unwrap();
        let modes = Modes { lease_ttl: Some(Nanos::from_secs(2)), ..Modes::default() };
        Engine::new(store, rules, modes, Metrics::default()).unwrap()
    }

    fn call(
        engine: &Engine,
        hits_addend: u32,
        is_negative_hits: bool,
        metadata: &[(&'static str, &str)],
    ) -> Result<RateLimitResponse, Status> {
        let entries = vec![DescriptorEntry { key: "k".into(), value: "v".into() }];
        let descriptor =
            RateLimitDescriptor { entries, is_negative_hits, ..RateLimitDescriptor::default() };
        let request =
            RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend };
        let value_of = |wanted: &str| {
            let found = metadata.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| value.as_bytes())
        };
        let mut reader = RequestReader::new();
        let (_, answer) = decide(engine, &mut reader, &request.encode_to_vec(), value_of)?;
        let mut bytes = Vec::new();
        encode_answer(&answer, Vec::new(), &mut bytes);
        Ok(RateLimitResponse::decode(bytes.as_slice()).unwrap())
    }

    const CALL: (&str, &str) = ("tidegate-call", "7");
    const ASK: [(&str, &str); 4] =
        [("tidegate-lease", "20"), ("tidegate-proxy", "ab"), ("tidegate-clock", "5"), CALL];

    #[test]
    fn the_path_is_that_of_the_protocol() {
        let path = format!("/{}/{}", tidegate_wire::RLS_SERVICE, tidegate_wire::RLS_METHOD);
        assert_eq!(SHOULD_RATE_LIMIT, path.as_bytes());
    }

    #[test]
    fn a_lease_is_had_and_given_back_by_words_of_metadata() {
        let dir = tempfile::TempDir::new().unwrap();
        let engine = engine(&dir);
        let status = |answer: Result<RateLimitResponse, Status>| {
            let mut answer = answer.unwrap();
            assert_eq!(answer.overall_code, i32::from(RlsCode::Ok));
            answer.statuses.remove(0)
        };
        assert_eq!(status(call(&engine, 1, false, &[])).quota, None);
        let leased = status(call(&engine, 1, false, &ASK));
        let quota = leased.quota.unwrap();
        assert_eq!((quota.requests, leased.limit_remaining), (20, 78));
        let returned = status(call(&engine, 15, true, &[("tidegate-return", &quota.id), CALL]));
        assert_eq!((returned.limit_remaining, returned.quota), (93, None));
        let unknown = status(call(&engine, 15, true, &[("tidegate-return", "12ab"), CALL]));
        assert_eq!(unknown.limit_remaining, 93);
    }

    #[test]
    fn metadata_that_makes_no_sense_is_an_invalid_argument() {
        #[track_caller]
        fn check(is_negative_hits: bool, metadata: &[(&'static str, &str)], message: &str) {
            let dir = tempfile::TempDir::new().unwrap();
            let engine = engine(&dir);
            let refused = call(&engine, 1, is_negative_hits, metadata).unwrap_err();
            assert_eq!(refused, Status::new(Code::InvalidArgument, message.to_owned()));
            let answer = call(&engine, 1, false, &[]).unwrap();
            assert_eq!(answer.statuses[0].limit_remaining, 99, "nothing was taken");
        }
        check(
            false,
            &[("tidegate-lease", "1,2"), ASK[1], ASK[2], CALL],
            "metadata tidegate-lease: \"1,2\" is not one number, or one for each descriptor",
        );
        check(false, &[ASK[0], ASK[2], CALL], "metadata tidegate-proxy: \"\" is not 16 hex digits");
        check(
            true,
            &[("tidegate-return", "x")],
            "metadata tidegate-return: \"x\" is not 16 hex digits for each descriptor",
        );
        check(
            true,
            &[("tidegate-return", "1")],
            "metadata tidegate-call: \"\" is not 16 hex digits",
        );
        check(
            false,
            &[("tidegate-return", "1"), CALL],
            "descriptors[0]: a return (metadata tidegate-return) takes no hits; set is_negative_hits",
        );
    }

    #[test]
    fn without_a_decision_the_code_says_whether_clients_can_bring_it_about() {
        for (error, code) in [
            (UpdateError::Busy { pid: 1, millis: 5 }, Code::Aborted),
            (UpdateError::DataLoss, Code::DataLoss),
            (UpdateError::Crowded { millis: 5 }, Code::ResourceExhausted),
            (
                UpdateError::TooLarge { keys: 1, words: 1, keys_max: 1, words_max: 1 },
                Code::ResourceExhausted,
            ),
        ] {
            assert_eq!(Status::from(Refused::Undecided(error.clone())).code, code, "{error}");
        }
    }

    #[test]
    fn bytes_that_are_no_request_are_an_invalid_argument() {
        let dir = tempfile::TempDir::new().unwrap();
        let refused = decide(&engine(&dir), &mut RequestReader::new(), &[0xff; 3], |_| None)
            .map_err(Status::from)
            .unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.starts_with("not a RateLimitRequest: "), "{refused}");
    }
}
