//! `tidegate serve`: turns options into the settings of a service.

use crate::arguments::{
    EvictionPolicy, LimitsSource, LogFormat, OnOff, ServeOptions, StoreOptions, Watch, defaults,
    denied,
};
use crate::commands::{UsageError, exit_code, exit_code_of};
use crate::defaults::ratelimit_env::Notices;
use std::path::Path;
use std::process::ExitCode;
use tidegate_authority::{DynamicMetadata, GlobalQuota, GlobalShadow, Modes};
use tidegate_core::{HeaderForm, Nanos};
use tidegate_feeds::FileSettings;
use tidegate_limits::Defaults;
use tidegate_process::{LogSettings, OpenFeed, Settings};
use tidegate_servers::frs;
use tidegate_store::{AfterLoss, Eviction};

/// Serves until a signal stops it. `notices` are about the environment. An error is a line of the log, where that is
/// JSON: so is everything else on standard error.
pub(crate) fn run(options: &ServeOptions, notices: &Notices) -> ExitCode {
    if !options.workers.as_worker
        && let Err(error) = tidegate_process::start_log(&log_settings(options))
    {
        return exit_code(Err(error), 1);
    }
    match serve(options, notices) {
        Err(error)
            if options.log_format == LogFormat::Json
                && tracing::enabled!(tracing::Level::ERROR) =>
        {
            tracing::error!("{error:#}");
            exit_code_of(&error, 1)
        }
        served => exit_code(served.map(|()| ExitCode::SUCCESS), 1),
    }
}

fn serve(options: &ServeOptions, notices: &Notices) -> anyhow::Result<()> {
    let settings = settings(options)?;
    let open_feed: &OpenFeed<'_> = &|copy, observer| {
        let feed = &feed_settings(options)?;
        match copy {
            None => tidegate_feeds::open(feed, &observer),
            Some(file) => tidegate_feeds::open_copy(feed, observer, file),
        }
    };
    if options.workers.as_worker {
        return tidegate_process::serve_as_worker(&settings, open_feed);
    }
    notices.log();
    log_unleased(options);
    log_traces(options, &settings);
    tidegate_process::serve(&settings, open_feed)
}

/// Logs that answers which carry more than a decision keep clients from holding leases: each request makes a call.
fn log_unleased(options: &ServeOptions) {
    if options.lease_ttl.0.is_none() {
    } else if options.dynamic_metadata {
        tracing::info!("nothing is leased: --dynamic-metadata describes each request");
    } else if options.replies.replies().form() != HeaderForm::Off {
        tracing::info!(
            "leases are granted only to filters that write the headers of --response-headers themselves"
        );
    }
}

/// Logs where spans go.
fn log_traces(options: &ServeOptions, settings: &Settings) {
    if let Some(traces) = &settings.traces {
        tracing::info!(endpoint = traces.endpoint(), "traces are exported");
    } else if options.traces.traces == OnOff::On {
        tracing::warn!("no traces are exported: OTEL_SDK_DISABLED is true");
    }
}

fn settings(options: &ServeOptions) -> anyhow::Result<Settings> {
    let shared = options.authority.settings()?;
    let data_dir = data_dir_settings(&options.store, shared.is_some());
    let cold = options.cold.settings(data_dir.dir.as_deref(), shared.is_some())?;
    Ok(Settings {
        data_dir,
        modes: modes(options),
        shared,
        cold,
        statistics: options.statistics.settings()?,
        top: options.top == OnOff::On,
        grpc: options.grpc.clone(),
        http: options.http.clone(),
        http_token: options.statistics.token()?,
        http_tls: options.http_options.tls(),
        console: options.http_options.console == OnOff::On,
        traces: options.traces.settings()?,
        prometheus: options.prometheus.clone(),
        prometheus_path: options.prometheus_path.clone(),
        frs_address: options.frs.address.clone(),
        socket_mode: options.socket_mode,
        rls: options.connections.settings(),
        frs: frs::Settings {
            connections_max: options.frs.connections as usize,
            request_timeout: options.frs.request_timeout,
            idle_timeout: options.frs.idle_timeout,
        },
        replies: options.replies.replies(),
        log: log_settings(options),
        workers: options.workers.count,
        takeover: options.workers.takeover,
    })
}

fn log_settings(options: &ServeOptions) -> LogSettings {
    LogSettings {
        filter: options.log.clone(),
        format: match options.log_format {
            LogFormat::Text => tidegate_process::LogFormat::Text,
            LogFormat::Json => tidegate_process::LogFormat::Json,
        },
    }
}

fn data_dir_settings(options: &StoreOptions, is_shared: bool) -> tidegate_data_dir::Settings {
    // What is held of shared counters must not be older than it was: its tokens would be spent twice.
    let (after_loss, sync_interval) = match is_shared {
        true => (AfterLoss::Nothing, None),
        false => (AfterLoss::LastSnapshot, options.sync_interval.0),
    };
    tidegate_data_dir::Settings {
        dir: (options.data_dir != Path::new("off")).then(|| options.data_dir.clone()),
        memory_dir: options.memory_dir.clone(),
        capacity: options.capacity,
        load: options.load,
        geometry: options.geometry,
        wide_capacity: options.wide_capacity,
        eviction: match options.eviction {
            EvictionPolicy::Refuse => Eviction::Refuse,
            EvictionPolicy::EvictSoonestExpiry => Eviction::EvictSoonestExpiry,
        },
        after_loss,
        sync_interval,
    }
}

/// Fails on `--frs-self-update`, and on several paths.
fn feed_settings(options: &ServeOptions) -> anyhow::Result<tidegate_feeds::Settings> {
    let self_update = options.frs.self_update()?;
    let watch = match options.watch {
        Watch::On => tidegate_feeds::Watch::On,
        Watch::Poll => tidegate_feeds::Watch::Poll,
        Watch::Off => tidegate_feeds::Watch::Off,
    };
    let (mut files, mut xds) = (None, Vec::new());
    for source in &options.limits {
        match source {
            LimitsSource::Server(server) => xds.push(options.xds.settings(server.clone())),
            LimitsSource::Path(path) => {
                let settings = FileSettings { path: path.clone(), watch };
                if files.replace(settings).is_some() {
                    let text = "--limits: give one path; a directory may have many files";
                    return Err(UsageError(text.to_owned()).into());
                }
            }
        }
    }
    Ok(tidegate_feeds::Settings {
        files,
        xds,
        defaults: Defaults { self_update, ..defaults(options.merge_domains, options.count_denied) },
        keeps_copy: options.workers.supervises(),
    })
}

fn modes(options: &ServeOptions) -> Modes {
    Modes {
        shadow: if options.shadow_mode { GlobalShadow::On } else { GlobalShadow::Off },
        quota: if options.quota_mode { GlobalQuota::On } else { GlobalQuota::Off },
        metadata: match options.dynamic_metadata {
            true => DynamicMetadata::On,
            false => DynamicMetadata::Off,
        },
        headers: options.replies.replies().form(),
        denied: denied(options.count_denied),
        lease_ttl: options.lease_ttl.0.map(|ttl| Nanos::new(ttl.as_nanos() as u64)),
        lessors: options.workers.lessors(),
    }
}
