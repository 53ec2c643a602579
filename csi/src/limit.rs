//! The size of a volume: the quota of its directory.

use std::time::Duration;

use base::FsError;
use client::Error;
use tokio::time::{Instant, sleep};
use tonic::Status;
use wire::DirRef;

use crate::{
    error::{Answer, status},
    fs::Fs,
    proto::csi,
};

/// Pause between two looks whether a quota is counted.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// Time after which a call that waits for a quota is told to come again.
const COUNT_TIMEOUT: Duration = Duration::from_secs(20);
/// Value of a quota that only counts.
const UNLIMITED: &str = "unlimited";

/// The quota of a directory.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct SizeLimit {
    /// The most bytes; `None`: any number.
    pub(crate) bytes: Option<u64>,
    /// Whether the server counts and enforces it already.
    pub(crate) active: bool,
}

impl SizeLimit {
    pub(crate) async fn read(fs: &Fs, dir: &DirRef) -> Answer<SizeLimit> {
        let facts = fs.facts(dir).await;
        let facts = facts.map_err(|error| status("read the quota of the volume", &error))?;
        let fact = |name: &str| facts.iter().find(|(found, _)| found == name).map(|(_, it)| it);
        Ok(SizeLimit {
            bytes: fact("quota.bytes").and_then(|value| value.parse().ok()),
            active: fact("quota.state").is_some_and(|state| state == "active"),
        })
    }

    /// Sets the quota and waits until it is enforced.
    pub(crate) async fn set(fs: &Fs, dir: &DirRef, bytes: Option<u64>) -> Answer<()> {
        let began = Instant::now();
        let value = bytes.map_or_else(|| UNLIMITED.to_owned(), |bytes| bytes.to_string());
        let mut set = false;
        while began.elapsed() < COUNT_TIMEOUT {
            if !set {
                match fs.setxattr(dir, "pando.quota.bytes", value.clone().into_bytes()).await {
                    // Another quota is being counted.
                    Err(Error::Fs(FsError::Busy)) => {}
                    done => {
                        done.map_err(|error| status("set the quota of the volume", &error))?;
                        set = true;
                    }
                }
            }
            if set && SizeLimit::read(fs, dir).await?.active {
                return Ok(());
            }
            sleep(LOOK_PERIOD).await;
        }
        Err(Status::aborted("the quota of the volume is still being counted"))
    }
}

/// A range of sizes; zero where the caller does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SizeRange {
    required: u64,
    limit: u64,
}

impl SizeRange {
    pub(crate) fn parse(range: Option<csi::CapacityRange>) -> Answer<SizeRange> {
        let range = range.unwrap_or_default();
        let bytes = |bytes: i64| {
            u64::try_from(bytes)
                .map_err(|_| Status::invalid_argument("a capacity is less than nothing"))
        };
        let range =
            SizeRange { required: bytes(range.required_bytes)?, limit: bytes(range.limit_bytes)? };
        if range.limit != 0 && range.limit < range.required {
            return Err(Status::out_of_range(
                "the limit of the capacity is below what is required",
            ));
        }
        Ok(range)
    }

    /// The size to choose; `None`: any.
    pub(crate) fn bytes(self) -> Option<u64> {
        let chosen = if self.required == 0 { self.limit } else { self.required };
        (chosen != 0).then_some(chosen)
    }

    /// Whether a volume of this size will do.
    pub(crate) fn allows(self, bytes: Option<u64>) -> bool {
        match bytes {
            None => self.limit == 0,
            Some(bytes) => bytes >= self.required && (self.limit == 0 || bytes <= self.limit),
        }
    }
}

/// A size as CSI has it; 0 is not known.
pub(crate) fn capacity(bytes: Option<u64>) -> i64 {
    bytes.map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_what_is_required_and_no_more_than_the_limit() {
        let range = |required_bytes, limit_bytes| {
            SizeRange::parse(Some(csi::CapacityRange { required_bytes, limit_bytes }))
        };
        assert_eq!(range(5, 9).unwrap().bytes(), Some(5));
        assert_eq!(range(0, 9).unwrap().bytes(), Some(9));
        assert_eq!(range(0, 0).unwrap().bytes(), None);
        assert!(range(5, 9).unwrap().allows(Some(9)) && !range(5, 9).unwrap().allows(Some(10)));
        assert!(!range(5, 0).unwrap().allows(Some(4)) && range(5, 0).unwrap().allows(None));
        assert!(range(-1, 0).is_err() && range(9, 5).is_err());
    }
}
