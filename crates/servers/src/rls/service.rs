//! Dispatches a message to its method, and implements the rate limit service.

use super::later::LaterCalls;
use super::outcome::{encode, end_decided, end_refused, refuse};
use super::{Endpoint, health, reflection};
use std::cell::RefCell;
use std::sync::Arc;
use tidegate_authority::{Called, clock};
use tidegate_grpc::server::{Call, Outcome, Service};
use tidegate_grpc::{Code, Status};
use tidegate_traces::Door;
use tidegate_wire::RequestReader;

/// The path of the rate limit service's only method.
const SHOULD_RATE_LIMIT: &[u8] = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The largest message of all other methods. These messages are names, and answers may repeat them.
const OTHER_MESSAGE_BYTES_MAX: usize = 4 * 1024;

/// How much of a path a refusal repeats.
const PATH_BYTES_SHOWN: usize = 128;

thread_local! {
    /// Keeps its buffers between calls, of any connection.
    static READER: RefCell<RequestReader> = const { RefCell::new(RequestReader::new()) };
}

/// Whether rate limit calls and reflection are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Calls are decided.
    Decide,
    /// Calls are refused unread, because more arrive than can be decided in time.
    Shed,
}

/// The methods, during one turn of a connection.
pub(super) struct Methods<'a> {
    pub(super) endpoint: &'a Arc<Endpoint>,
    pub(super) admission: Admission,
    pub(super) later: &'a mut LaterCalls,
    /// Rate limit calls that were answered.
    pub(super) answered: u64,
}

impl Service for Methods<'_> {
    fn answer(&mut self, call: &Call<'_>, answer: &mut Vec<u8>) -> Outcome {
        if call.path == SHOULD_RATE_LIMIT {
            return match self.admission {
                Admission::Decide => self.should_rate_limit(call, answer),
                Admission::Shed => {
                    self.endpoint.shared.observer.shed("grpc");
                    Outcome::Refused(Status::new(Code::ResourceExhausted, "overloaded"))
                }
            };
        }
        self.answer_other(call, answer)
    }
}

impl Methods<'_> {
    fn should_rate_limit(&mut self, call: &Call<'_>, answer: &mut Vec<u8>) -> Outcome {
        let endpoint = self.endpoint;
        let value_of = |name| call.metadata.get(name);
        let tracer = endpoint.shared.tracer.as_ref();
        let mut span = tracer.and_then(|tracer| tracer.begin(Door::Grpc, value_of));
        let answered = READER.with_borrow_mut(|reader| {
            let called =
                endpoint.shared.authority.answer_call(reader, call.message, value_of, clock::now);
            let outcome = match called {
                Ok(Called::Answered(request, decided)) => {
                    encode(endpoint, request, &decided, answer);
                    if let Some(span) = span.take() {
                        end_decided(span, endpoint, request, &decided);
                    }
                    Ok(Outcome::Unary)
                }
                Ok(Called::Later(later)) => Err(later),
                Err(refused) => {
                    let status = refuse(endpoint, refused);
                    end_refused(span.take(), &status);
                    Ok(Outcome::Refused(status))
                }
            };
            reader.release();
            outcome
        });
        match answered {
            Ok(outcome) => {
                self.answered += 1;
                outcome
            }
            Err(later) => self.later.begin(call.id, later, span),
        }
    }

    /// All methods except the one that nearly all calls are for.
    #[cold]
    fn answer_other(&self, call: &Call<'_>, answer: &mut Vec<u8>) -> Outcome {
        if call.message.len() > OTHER_MESSAGE_BYTES_MAX {
            let message = format!("a message is larger than {OTHER_MESSAGE_BYTES_MAX} bytes");
            return Outcome::Refused(Status::new(Code::ResourceExhausted, message));
        }
        let shown = call.path.get(..PATH_BYTES_SHOWN).unwrap_or(call.path);
        let path = String::from_utf8_lossy(shown);
        match path.strip_prefix('/').and_then(|path| path.split_once('/')) {
            Some((health::SERVICE, "Check")) => {
                health::answer_check(call.message, &self.endpoint.shared.health, answer)
            }
            Some((health::SERVICE, "Watch")) => {
                health::answer_watch(call.message, &self.endpoint.shared.health, answer)
            }
            Some((service, "ServerReflectionInfo")) if reflection::SERVICES.contains(&service) => {
                match self.admission {
                    Admission::Decide => reflection::answer(call.message, answer),
                    Admission::Shed => {
                        Outcome::Refused(Status::new(Code::ResourceExhausted, "overloaded"))
                    }
                }
            }
            _ => {
                let message = format!("unknown method {path}");
                Outcome::Refused(Status::new(Code::Unimplemented, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::status_of;
    use super::*;
    use prost::Message;
    use tidegate_authority::{Authority, Modes};
    use tidegate_core::Nanos;
    use tidegate_limits::{self as rules, SameDomain};
    use tidegate_store::{Cluster, Geometry, Options};
    use tidegate_wire::encode_answer;
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
        let (_, answer) = called.map_err(status_of)?.answered().expect("the store answers at once");
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
    fn metadata_requests_and_returns_a_lease() {
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
    fn metadata_that_is_not_valid_is_an_invalid_argument() {
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
    fn bytes_that_are_not_a_request_are_an_invalid_argument() {
        let dir = tempfile::TempDir::new().unwrap();
        let (authority, mut reader) = (authority(&dir), RequestReader::new());
        let refused = authority.answer_call(&mut reader, &[0xff; 3], |_| None, clock::now);
        let refused = refused.map_err(status_of).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.starts_with("not a RateLimitRequest: "), "{refused}");
    }
}
