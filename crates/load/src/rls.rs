//! RLS over gRPC: the request, encoded once for all keys, and the meaning of an answer.

use crate::ending::{Breakage, Ending, Refusal};
use crate::options::{Descriptor, LoadOptions, Target};
use crate::template::{PLACEHOLDER, Template};
use prost::Message;
use tidegate_grpc::client::{Connection, Ended};
use tidegate_wire::rls::{DescriptorEntry, RateLimitDescriptor, RateLimitRequest};
use tidegate_wire::{RLS_METHOD, RLS_SERVICE};

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;
const RESOURCE_EXHAUSTED: u32 = 8;
const SERVICE_UNAVAILABLE: u16 = 503;

/// The only field of an answer that is read; others are skipped.
#[derive(Clone, Copy, PartialEq, Message)]
struct Verdict {
    #[prost(int32, tag = "1")]
    overall_code: i32,
}

/// Connects to a service.
pub(crate) fn connect(target: &Target) -> Connection {
    let authority = match target {
        Target::Tcp(address) => address.as_str(),
        Target::Unix(_) => "localhost",
    };
    Connection::new(authority, &format!("/{RLS_SERVICE}/{RLS_METHOD}"), &[])
}

/// The template of the requests.
pub(crate) fn request(options: &LoadOptions) -> Template {
    Template::new(options.keys, |key| {
        let descriptors = options.descriptors.iter();
        let request = RateLimitRequest {
            domain: options.domain.clone(),
            descriptors: descriptors.map(|descriptor| with_key(descriptor, key)).collect(),
            hits_addend: options.hits.unwrap_or_default(),
        };
        request.encode_to_vec()
    })
}

fn with_key(descriptor: &Descriptor, key: &str) -> RateLimitDescriptor {
    let fill = |text: &String| text.replace(PLACEHOLDER, key);
    let entries = descriptor.entries.iter();
    RateLimitDescriptor {
        entries: entries
            .map(|(key, value)| DescriptorEntry { key: fill(key), value: fill(value) })
            .collect(),
        ..RateLimitDescriptor::default()
    }
}

/// How the end of a call is counted.
pub(crate) fn ending(ended: &Ended<'_>) -> Ending {
    match ended {
        Ended::Answer(message) => match Verdict::decode(*message) {
            Ok(Verdict { overall_code: OK }) => Ending::Allowed,
            Ok(Verdict { overall_code: OVER_LIMIT }) => Ending::Denied,
            _ => Ending::Refused(Refusal::Unreadable),
        },
        Ended::Refused { code: RESOURCE_EXHAUSTED, .. } | Ended::Http(SERVICE_UNAVAILABLE) => {
            Ending::Shed
        }
        Ended::Refused { code, .. } => Ending::Refused(Refusal::Grpc(*code)),
        Ended::Http(status) => Ending::Refused(Refusal::Http(*status)),
        Ended::Reset(code) => Ending::Broken(Breakage::Reset(*code)),
        Ended::Unprocessed => Ending::Broken(Breakage::Unprocessed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_wire::rls::{DescriptorStatus, RateLimitResponse};

    #[test]
    fn a_request_says_what_was_asked_for() {
        let options = LoadOptions {
            domain: "shop".to_owned(),
            descriptors: vec!["a=b,user={key}".parse().unwrap(), "{key}={key}".parse().unwrap()],
            hits: Some(7),
            keys: 1_000,
            ..LoadOptions::default()
        };
        let mut template = request(&options);
        for key in [5, 999] {
            let request = RateLimitRequest::decode(template.message(key)).unwrap();
            let entry = |key: &str, value: &str| DescriptorEntry {
                key: key.to_owned(),
                value: value.to_owned(),
            };
            let number = key.to_string();
            assert_eq!((request.domain.as_str(), request.hits_addend), ("shop", 7));
            assert_eq!(request.descriptors[0].entries, [entry("a", "b"), entry("user", &number)]);
            assert_eq!(request.descriptors[1].entries, [entry(&number, &number)]);
        }
    }

    #[test]
    fn every_end_of_a_call_has_its_class() {
        let answer = |overall_code| {
            let statuses = vec![DescriptorStatus::default()];
            RateLimitResponse { overall_code, statuses, ..RateLimitResponse::default() }
                .encode_to_vec()
        };
        let refused = |code| Ended::Refused { code, message: b"so" };
        let (allow, deny, unknown) = (answer(1), answer(2), answer(0));
        for (ended, ending) in [
            (Ended::Answer(&allow), Ending::Allowed),
            (Ended::Answer(&deny), Ending::Denied),
            (Ended::Answer(&unknown), Ending::Refused(Refusal::Unreadable)),
            (Ended::Answer(&[]), Ending::Refused(Refusal::Unreadable)),
            (Ended::Answer(&[0xff]), Ending::Refused(Refusal::Unreadable)),
            (refused(8), Ending::Shed),
            (refused(14), Ending::Refused(Refusal::Grpc(14))),
            (Ended::Http(503), Ending::Shed),
            (Ended::Http(404), Ending::Refused(Refusal::Http(404))),
            (Ended::Reset(7), Ending::Broken(Breakage::Reset(7))),
            (Ended::Unprocessed, Ending::Broken(Breakage::Unprocessed)),
        ] {
            assert_eq!(super::ending(&ended), ending, "{ended:?}");
        }
    }
}
