//! What is done with a message of a call: which method it is for, and the rate limit service itself.

use super::{Door, health, reflection};
use std::cell::RefCell;
use tidegate_authority::{CallError, clock};
use tidegate_grpc::server::{Call, Outcome, Service};
use tidegate_grpc::{Code, Status};
use tidegate_store::UpdateError;
use tidegate_wire::{RequestReader, encode_answer};

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
                    self.door.observer.shed("grpc");
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
            let outcome =
                match self.door.authority.answer_call(reader, call.message, value_of, clock::now) {
                    Ok((request, decided)) => {
                        let headers = self.door.replies.headers(request, &decided);
                        encode_answer(&decided, headers, answer);
                        Outcome::Unary
                    }
                    Err(refused) => {
                        self.door.observer.refused();
                        if let CallError::Undecided(error) = &refused {
                            self.door.observer.undecided(error);
                        }
                        Outcome::Refused(status_of(refused))
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

/// The status of a call without an answer.
fn status_of(error: CallError) -> Status {
    match error {
        CallError::Invalid(message) => {
            tracing::debug!(error = message, "refused a request");
            Status::new(Code::InvalidArgument, message)
        }
        CallError::Undecided(error) => {
            tracing::debug!(%error, "no decision");
            Status::new(code_of(&error), error.to_string())
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

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use std::sync::Arc;
    use tidegate_authority::{Authority, Modes};
    use tidegate_core::Nanos;
    use tidegate_limits::{self as rules, SameDomain};
    use tidegate_store::{Cluster, Geometry, Options};
    use tidegate_wire::rls::{
        Code as RlsCode, DescriptorEntry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
    };

    fn authority(dir: &tempfile::TempDir) -> Authority {
        let limits = dir.path().join("limits.yaml");
        let limit = "rate_limit: {unit: day, requests_per_unit: 100}";
        std::fs::write(&limits, format!("domain: d\ndescriptors:\n- {{key: k, {limit}}}")).unwrap();
        let rules = rules::load(&limits, SameDomain::Refuse).unwrap().rules;
        let options = Options::narrow(Geometry::by_capacity(64, 0.8).unwrap());
        let store = Cluster::open(&dir.path().join("data"), &options).unwrap();
        let modes = Modes { lease_ttl: Some(Nanos::from_secs(2)), ..Modes::default() };
        Authority::new(Arc::new(store), rules, modes, Arc::new(())).unwrap()
    }

    fn call(
        authority: &Authority,
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
        let message = request.encode_to_vec();
        let called = authority.answer_call(&mut reader, &message, value_of, clock::now);
        let (_, answer) = called.map_err(status_of)?;
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
        let authority = authority(&dir);
        let status = |answer: Result<RateLimitResponse, Status>| {
            let mut answer = answer.unwrap();
            assert_eq!(answer.overall_code, i32::from(RlsCode::Ok));
            answer.statuses.remove(0)
        };
        assert_eq!(status(call(&authority, 1, false, &[])).quota, None);
        let leased = status(call(&authority, 1, false, &ASK));
        let quota = leased.quota.unwrap();
        assert_eq!((quota.requests, leased.limit_remaining), (20, 78));
        let returned = status(call(&authority, 15, true, &[("tidegate-return", &quota.id), CALL]));
        assert_eq!((returned.limit_remaining, returned.quota), (93, None));
        let unknown = status(call(&authority, 15, true, &[("tidegate-return", "12ab"), CALL]));
        assert_eq!(unknown.limit_remaining, 93);
    }

    #[test]
    fn metadata_that_makes_no_sense_is_an_invalid_argument() {
        #[track_caller]
        fn check(is_negative_hits: bool, metadata: &[(&'static str, &str)], message: &str) {
            let dir = tempfile::TempDir::new().unwrap();
            let authority = authority(&dir);
            let refused = call(&authority, 1, is_negative_hits, metadata).unwrap_err();
            assert_eq!(refused, Status::new(Code::InvalidArgument, message.to_owned()));
            let answer = call(&authority, 1, false, &[]).unwrap();
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
            assert_eq!(status_of(CallError::Undecided(error.clone())).code, code, "{error}");
        }
    }

    #[test]
    fn bytes_that_are_no_request_are_an_invalid_argument() {
        let dir = tempfile::TempDir::new().unwrap();
        let (authority, mut reader) = (authority(&dir), RequestReader::new());
        let refused = authority.answer_call(&mut reader, &[0xff; 3], |_| None, clock::now);
        let refused = refused.map_err(status_of).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.starts_with("not a RateLimitRequest: "), "{refused}");
    }
}
