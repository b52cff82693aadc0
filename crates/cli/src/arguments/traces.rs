//! Flags of the export of traces. Where spans go, and the rest, is in the variables of OpenTelemetry.

use super::OnOff;
use crate::commands::UsageError;
use clap::Args;
use tidegate_traces::{Flags, Protocol, Settings, pairs};

/// Traces.
#[derive(Debug, Args)]
pub(crate) struct TracesOptions {
    /// Whether spans of calls are exported by OTLP, to where OTEL_EXPORTER_OTLP_ENDPOINT says
    #[arg(long, value_name = "WHEN", env = "TIDEGATE_TRACES", default_value = "off")]
    pub(crate) traces: OnOff,

    /// Share of the calls that are sampled, 0 to 1, if their client has made no choice. Goes before
    /// OTEL_TRACES_SAMPLER; without either all are
    #[arg(long, value_name = "SHARE", env = "TIDEGATE_TRACES_RATIO", value_parser = ratio)]
    pub(crate) traces_ratio: Option<f64>,

    /// Protocol of the collector: http/protobuf or grpc. Goes before OTEL_EXPORTER_OTLP_PROTOCOL; without either
    /// http/protobuf
    #[arg(
        long,
        value_name = "PROTOCOL",
        env = "TIDEGATE_TRACES_PROTOCOL",
        value_parser = protocol
    )]
    pub(crate) traces_protocol: Option<Protocol>,

    /// Attributes of this service, such as service.name=limits. They go before OTEL_SERVICE_NAME and
    /// OTEL_RESOURCE_ATTRIBUTES
    #[arg(
        long,
        value_name = "KEY=VALUE,...",
        env = "TIDEGATE_TRACES_ATTRIBUTES",
        value_parser = attributes
    )]
    pub(crate) traces_attributes: Option<Attributes>,
}

/// Names and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attributes(Vec<(String, String)>);

impl TracesOptions {
    /// None if no traces are exported. Fails on variables that make no sense, which are not looked at otherwise.
    pub(crate) fn settings(&self) -> anyhow::Result<Option<Settings>> {
        if self.traces == OnOff::Off {
            return Ok(None);
        }
        let attributes = self.traces_attributes.as_ref();
        let flags = Flags {
            ratio: self.traces_ratio,
            protocol: self.traces_protocol,
            attributes: attributes.map_or_else(Vec::new, |Attributes(pairs)| pairs.clone()),
        };
        let settings = Settings::read(&flags, |name| std::env::var_os(name));
        Ok(settings.map_err(|mistake| UsageError(mistake.to_string()))?)
    }
}

fn ratio(text: &str) -> Result<f64, &'static str> {
    let ratio: Option<f64> = text.parse().ok();
    ratio.filter(|ratio| (0.0..=1.0).contains(ratio)).ok_or("expected a number from 0 to 1")
}

fn protocol(text: &str) -> Result<Protocol, String> {
    text.parse().map_err(|expected| format!("expected {expected}"))
}

fn attributes(text: &str) -> Result<Attributes, &'static str> {
    pairs(text).map(Attributes).ok_or("expected attributes, as KEY=VALUE,KEY=VALUE")
}
