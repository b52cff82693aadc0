//! The variables of envoyproxy/ratelimit for traces. They count where `TRACING_ENABLED` is true. The rest of an export is
//! in variables of OpenTelemetry, there as here.

use super::{Extent, RatelimitEnv, Variables, Warning, values};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

pub(super) const NAMES: [&str; 6] = [
    ENABLED,
    "TRACING_EXPORTER_PROTOCOL",
    "TRACING_SAMPLING_RATE",
    "TRACING_SERVICE_NAME",
    "TRACING_SERVICE_NAMESPACE",
    "TRACING_SERVICE_INSTANCE_ID",
];

const ENABLED: &str = "TRACING_ENABLED";
/// Its own default.
const SERVICE: &str = "RateLimit";
/// What an attribute may have as it is.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'/');

pub(super) fn read(environment: &mut RatelimitEnv, set: &Variables) {
    if environment.parsed(set, ENABLED, values::truth) != Some(true) {
        let advice = "traces are exported only with TRACING_ENABLED=true";
        let others = NAMES.iter().filter(|name| **name != ENABLED && set.text(name).is_some());
        environment.warnings.extend(others.map(|name| Warning { name, advice }));
        return;
    }
    environment.add_default(ENABLED, "traces", "on".to_owned());
    let parsers: [(&str, &str, values::Parser); 2] = [
        ("TRACING_EXPORTER_PROTOCOL", "traces_protocol", protocol),
        ("TRACING_SAMPLING_RATE", "traces_ratio", values::share),
    ];
    for (name, id, parse) in parsers {
        if let Some(value) = environment.parsed(set, name, parse) {
            environment.add_default(name, id, value);
        }
    }
    let service = set.text("TRACING_SERVICE_NAME");
    let attributes = [
        ("service.name", service.or((set.extent == Extent::Whole).then_some(SERVICE))),
        ("service.namespace", set.text("TRACING_SERVICE_NAMESPACE")),
        ("service.instance.id", set.text("TRACING_SERVICE_INSTANCE_ID")),
    ];
    let attributes: Vec<String> = attributes
        .iter()
        .filter_map(|(name, value)| {
            Some(format!("{name}={}", utf8_percent_encode((*value)?, VALUE)))
        })
        .collect();
    if !attributes.is_empty() {
        environment.add_default("TRACING_SERVICE_…", "traces_attributes", attributes.join(","));
    }
}

fn protocol(text: &str) -> Result<String, &'static str> {
    match text {
        "http" => Ok("http/protobuf".to_owned()),
        "grpc" => Ok("grpc".to_owned()),
        _ => Err("http or grpc"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{defaults, environment, warnings};
    use crate::defaults::ratelimit_env::{Extent, RatelimitEnv};

    /// Of that service alone, so that the others count.
    const OWN: (&str, &str) = ("GRPC_UDS", "/run/x.sock");
    const GRPC: (&str, &str) = ("grpc", "unix:/run/x.sock");
    const OTHERS: [(&str, &str); 5] = [
        ("TRACING_EXPORTER_PROTOCOL", "grpc"),
        ("TRACING_SAMPLING_RATE", "0.01"),
        ("TRACING_SERVICE_NAME", "limits, of a=b"),
        ("TRACING_SERVICE_NAMESPACE", "shop"),
        ("TRACING_SERVICE_INSTANCE_ID", "pod-1/a"),
    ];

    #[test]
    fn what_is_set_becomes_flags() {
        let on = ("TRACING_ENABLED", "true");
        defaults(&[OWN, on], &[GRPC, ("traces", "on")]);
        let attributes = "service.name=limits%2C%20of%20a%3Db,service.namespace=shop,service.instance.id=pod-1/a";
        defaults(
            &[&[OWN, on], &OTHERS[..]].concat(),
            &[
                GRPC,
                ("traces", "on"),
                ("traces_protocol", "grpc"),
                ("traces_ratio", "0.01"),
                ("traces_attributes", attributes),
            ],
        );
        let http = ("TRACING_EXPORTER_PROTOCOL", "http");
        defaults(&[OWN, on, http], &[GRPC, ("traces", "on"), ("traces_protocol", "http/protobuf")]);
        // Of another program.
        defaults(&[on], &[]);
    }

    #[test]
    fn a_program_in_its_place_has_its_name() {
        let environment = RatelimitEnv::read(Extent::Whole, |name| {
            (name == "TRACING_ENABLED").then(|| "true".into())
        });
        let mut found = environment.defaults().iter();
        let found = found.find(|default| default.id == "traces_attributes").unwrap();
        assert_eq!(found.value, "service.name=RateLimit");
    }

    #[test]
    fn nothing_counts_unless_it_is_enabled() {
        for off in [&[OWN][..], &[OWN, ("TRACING_ENABLED", "false")]] {
            let set = [off, &OTHERS[..]].concat();
            defaults(&set, &[GRPC]);
            warnings(&set, &OTHERS.map(|(name, _)| name));
        }
    }

    #[test]
    fn a_mistake_names_what_is_expected() {
        for (name, value, expected) in [
            ("TRACING_ENABLED", "yes", "true or false"),
            ("TRACING_EXPORTER_PROTOCOL", "udp", "http or grpc"),
            ("TRACING_SAMPLING_RATE", "1.5", "a number from 0 to 1"),
        ] {
            let found = environment(&[OWN, ("TRACING_ENABLED", "true"), (name, value)]);
            let found =
                if name == "TRACING_ENABLED" { environment(&[OWN, (name, value)]) } else { found };
            assert_eq!(found.mistakes(), [format!("{name}={value:?}: expected {expected}")]);
        }
    }
}
