//! gRPC's health service, `grpc.health.v1.Health`: Check and Watch.
//!
//! All names share one health, that of the process: `""`, `ratelimit` (the name used by envoyproxy/ratelimit)
//! and the name of the rate limit service.

use super::messages::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use crate::health::{Health, SharedHealth};
use prost::Message;
use std::future::pending;
use tidegate_grpc::server::Outcome;
use tidegate_grpc::{Code, Status};
use tidegate_wire::RLS_SERVICE;
use tokio::sync::watch;

pub(super) const SERVICE: &str = "grpc.health.v1.Health";

const NAMES: [&str; 3] = ["", "ratelimit", RLS_SERVICE];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServingState {
    /// Requests are decided.
    Serving,
    /// Requests cannot be decided.
    NotServing,
    /// Calls under way are answered, and new ones refused.
    Stopping,
}

/// Publishes each change of the state, until `stop` is true.
pub(super) async fn publish_state(
    mut health: Health,
    mut stop: watch::Receiver<bool>,
    sender: watch::Sender<ServingState>,
) {
    loop {
        let state = match health.failing() {
            _ if *stop.borrow_and_update() => ServingState::Stopping,
            None => ServingState::Serving,
            Some(_) => ServingState::NotServing,
        };
        sender.send_if_modified(|last| std::mem::replace(last, state) != state);
        if state == ServingState::Stopping {
            return;
        }
        tokio::select! {
            changed = stop.changed() => if changed.is_err() {
                // The sender is gone, which is a stop as well.
                sender.send_replace(ServingState::Stopping);
                return;
            },
            () = changed_or_pending(&mut health.draining) => {}
            () = changed_or_pending(&mut health.store) => {}
            () = shared_changed(&mut health.shared) => {}
        }
    }
}

/// Waits for a change; forever if the sender is gone.
async fn changed_or_pending<T>(watched: &mut watch::Receiver<T>) {
    if watched.changed().await.is_err() {
        pending::<()>().await;
    }
}

async fn shared_changed(shared: &mut Option<SharedHealth>) {
    match shared {
        Some(shared) => changed_or_pending(&mut shared.cause).await,
        None => pending().await,
    }
}

/// The message of a state to a watcher.
pub(super) fn watch_message(state: ServingState) -> Vec<u8> {
    encode(match state {
        ServingState::Serving => ServingStatus::Serving,
        ServingState::NotServing | ServingState::Stopping => ServingStatus::NotServing,
    })
}

pub(super) fn answer_check(message: &[u8], health: &Health, answer: &mut Vec<u8>) -> Outcome {
    match status(message, health) {
        Ok(ServingStatus::ServiceUnknown) => {
            Outcome::Refused(Status::new(Code::NotFound, "unknown service"))
        }
        Ok(status) => {
            answer.extend(encode(status));
            Outcome::Unary
        }
        Err(refused) => Outcome::Refused(refused),
    }
}

pub(super) fn answer_watch(message: &[u8], health: &Health, answer: &mut Vec<u8>) -> Outcome {
    match status(message, health) {
        Ok(status) => {
            answer.extend(encode(status));
            match status {
                // Unknown names never become known, so nothing follows. The protocol requires an open call
                // all the same: a client takes an end for a failure and calls again.
                ServingStatus::ServiceUnknown => Outcome::Kept,
                _ => Outcome::Watched,
            }
        }
        Err(refused) => Outcome::Refused(refused),
    }
}

fn status(message: &[u8], health: &Health) -> Result<ServingStatus, Status> {
    let request = HealthCheckRequest::decode(message).map_err(|error| {
        Status::new(Code::InvalidArgument, format!("not a HealthCheckRequest: {error}"))
    })?;
    Ok(match health.failing() {
        _ if !NAMES.contains(&request.service.as_str()) => ServingStatus::ServiceUnknown,
        None => ServingStatus::Serving,
        Some(_) => ServingStatus::NotServing,
    })
}

fn encode(status: ServingStatus) -> Vec<u8> {
    HealthCheckResponse { status: status.into() }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_data_dir::{FileState, StoreHealth};

    struct Process {
        draining: watch::Sender<bool>,
        store: watch::Sender<StoreHealth>,
        health: Health,
    }

    fn files(files: FileState) -> StoreHealth {
        StoreHealth { files, ..StoreHealth::default() }
    }

    fn process() -> Process {
        let (draining, is_draining) = watch::channel(false);
        let (store, is_store) = watch::channel(StoreHealth::default());
        Process {
            draining,
            store,
            health: Health {
                draining: is_draining,
                store: is_store,
                workers: None,
                shared: None,
                cold: None,
            },
        }
    }

    fn call(
        health: &Health,
        service: &str,
        method: fn(&[u8], &Health, &mut Vec<u8>) -> Outcome,
    ) -> (Outcome, Option<ServingStatus>) {
        let request = HealthCheckRequest { service: service.to_owned() }.encode_to_vec();
        let mut answer = Vec::new();
        let outcome = method(&request, health, &mut answer);
        // The status SERVING takes two bytes; only UNKNOWN, which is never sent, takes none.
        let status = (!answer.is_empty())
            .then(|| HealthCheckResponse::decode(answer.as_slice()).unwrap().status());
        (outcome, status)
    }

    #[test]
    fn names_that_are_served_have_the_health_of_the_process() {
        let process = process();
        for name in NAMES {
            let serving = Some(ServingStatus::Serving);
            assert_eq!(call(&process.health, name, answer_check), (Outcome::Unary, serving));
            assert_eq!(call(&process.health, name, answer_watch), (Outcome::Watched, serving));
        }
        process.draining.send_replace(true);
        let not_serving = Some(ServingStatus::NotServing);
        assert_eq!(call(&process.health, "", answer_check), (Outcome::Unary, not_serving));
        process.draining.send_replace(false);
        process.store.send_replace(files(FileState::Damaged));
        assert_eq!(call(&process.health, "", answer_watch), (Outcome::Watched, not_serving));
    }

    #[test]
    fn an_unknown_name_is_not_found_or_told_as_unknown() {
        let health = process().health;
        let (outcome, status) = call(&health, "other", answer_check);
        assert_eq!(outcome, Outcome::Refused(Status::new(Code::NotFound, "unknown service")));
        assert_eq!(status, None);
        let unknown = Some(ServingStatus::ServiceUnknown);
        assert_eq!(call(&health, "other", answer_watch), (Outcome::Kept, unknown));
        let refused = answer_check(&[0xff], &health, &mut Vec::new());
        assert!(
            matches!(refused, Outcome::Refused(status) if status.code == Code::InvalidArgument)
        );
    }

    #[tokio::test]
    async fn each_change_is_told_once_and_a_stop_is_the_last() {
        let process = process();
        let (stop, stopped) = watch::channel(false);
        let (sender, mut state) = watch::channel(ServingState::Serving);
        let publishing = tokio::spawn(publish_state(process.health.clone(), stopped, sender));
        process.store.send_replace(files(FileState::Damaged));
        state.changed().await.unwrap();
        assert_eq!(*state.borrow_and_update(), ServingState::NotServing);
        process.store.send_replace(files(FileState::Replaced));
        state.changed().await.unwrap();
        assert_eq!(*state.borrow_and_update(), ServingState::Serving);
        // A lost sender of the store's health is no change.
        drop(process.store);
        stop.send_replace(true);
        state.changed().await.unwrap();
        assert_eq!(*state.borrow_and_update(), ServingState::Stopping);
        publishing.await.unwrap();
        assert!(state.changed().await.is_err());
    }
}
