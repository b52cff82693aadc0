//! `tidegate serve`: turns options into the settings of a service.

use crate::arguments::{
    EvictionPolicy, LogFormat, ServeOptions, StoreOptions, Watch, defaults, denied,
};
use crate::defaults::ratelimit_env::Notices;
use std::sync::Arc;
use tidegate_authority::{DynamicMetadata, GlobalQuota, GlobalShadow, Modes};
use tidegate_core::{HeaderForm, Nanos};
use tidegate_feeds::{Feed, FileFeed};
use tidegate_limits::Defaults;
use tidegate_process::{LogSettings, OpenFeed, Settings};
use tidegate_servers::frs;
use tidegate_store::Eviction;

/// Serves until a signal stops it. `notices` are about the environment.
pub(crate) fn run(options: &ServeOptions, notices: &Notices) -> anyhow::Result<()> {
    let settings = settings(options)?;
    let open_feed: &OpenFeed<'_> = &|copy, observer| {
        let feed = &feed_settings(options)?;
        let (feed, rules) = match copy {
            None => FileFeed::open(feed, observer)?,
            Some(file) => FileFeed::from_copy(feed, observer, file)?,
        };
        Ok((Arc::new(feed) as Arc<dyn Feed>, rules))
    };
    if options.workers.as_worker {
        return tidegate_process::serve_as_worker(&settings, open_feed);
    }
    tidegate_process::start_log(&settings.log)?;
    notices.log();
    log_unleased(options);
    log_authority(options)?;
    tidegate_process::serve(&settings, open_feed)
}

/// Logs what of the options of shared counters has no effect.
fn log_authority(options: &ServeOptions) -> anyhow::Result<()> {
    if options.authority.per_second_settings()?.is_some() {
        tracing::warn!("limits per second are counted in the servers of --authority, too");
    }
    Ok(())
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

fn settings(options: &ServeOptions) -> anyhow::Result<Settings> {
    Ok(Settings {
        data_dir: data_dir_settings(&options.store),
        modes: modes(options),
        shared: options.authority.settings()?,
        grpc: options.grpc.clone(),
        http: options.http.clone(),
        frs_address: options.frs.address.clone(),
        rls: options.connections.settings(),
        frs: frs::Settings {
            connections_max: options.frs.connections as usize,
            request_timeout: options.frs.request_timeout,
            idle_timeout: options.frs.idle_timeout,
        },
        replies: options.replies.replies(),
        log: LogSettings {
            filter: options.log.clone(),
            format: match options.log_format {
                LogFormat::Text => tidegate_process::LogFormat::Text,
                LogFormat::Json => tidegate_process::LogFormat::Json,
            },
        },
        workers: options.workers.count,
        takeover: options.workers.takeover,
    })
}

fn data_dir_settings(options: &StoreOptions) -> tidegate_data_dir::Settings {
    tidegate_data_dir::Settings {
        dir: options.data_dir.clone(),
        memory_dir: options.memory_dir.clone(),
        capacity: options.capacity,
        load: options.load,
        geometry: options.geometry,
        wide_capacity: options.wide_capacity,
        eviction: match options.eviction {
            EvictionPolicy::Refuse => Eviction::Refuse,
            EvictionPolicy::EvictSoonestExpiry => Eviction::EvictSoonestExpiry,
        },
        sync_interval: options.sync_interval.0,
    }
}

/// Fails on `--frs-self-update`.
fn feed_settings(options: &ServeOptions) -> anyhow::Result<tidegate_feeds::Settings> {
    let self_update = options.frs.self_update()?;
    Ok(tidegate_feeds::Settings {
        path: options.limits.clone(),
        defaults: Defaults { self_update, ..defaults(options.merge_domains, options.count_denied) },
        watch: match options.watch {
            Watch::On => tidegate_feeds::Watch::On,
            Watch::Poll => tidegate_feeds::Watch::Poll,
            Watch::Off => tidegate_feeds::Watch::Off,
        },
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
