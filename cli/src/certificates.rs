//! The certificate of a server: issued by the file system's authority, or the operator's own.
//!
//! `server` calls it. One that this server issues is renewed daily; one in files is read again when
//! they change. A certificate that cannot be renewed stays, and the log says so in time.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use base::Clock as _;
use client::{Connector, Encryption, SystemClock, Trust};
use serde::{Deserialize, Serialize};
use tls::{Acceptor, Authority, Identity, Names};
use tokio::{sync::Mutex, time::Instant};

/// Age of a certificate at which a server issues itself another: a seventh of its validity.
const ISSUE_PERIOD: Duration = Duration::from_secs(24 * 3600);
/// Pause between two looks at that age: a clock that is set, or a machine that has slept, makes it
/// another one.
const AGE_LOOK_PERIOD: Duration = Duration::from_secs(60);
/// Pause between two looks whether the operator's files have changed.
const LOOK_PERIOD: Duration = Duration::from_secs(2);
/// Validity that is left of an operator's certificate when the log begins to warn, daily.
const WARN_LEFT: Duration = Duration::from_secs(14 * 24 * 3600);
/// Pause between two such warnings.
const WARN_PERIOD: Duration = Duration::from_secs(24 * 3600);

/// An operator's own certificate, as files in PEM. Persisted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Files {
    /// The server's certificate, and those of intermediate authorities after it.
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// The authorities by which this server knows the others.
    pub(crate) ca: PathBuf,
}

/// The certificate of a server, and how it is renewed.
#[derive(Clone)]
pub(crate) struct Certificates {
    acceptor: Acceptor,
    /// Held for as long as it is renewed.
    source: Arc<Mutex<Source>>,
    /// The certificate of the file system's authority, if this server's is of it.
    authority_pem: Option<String>,
    /// How the server knows the others of its cluster.
    connector: Connector,
}

enum Source {
    /// The file system's authority has issued one to this server, then.
    Issued { authority: Box<Authority>, names: Names, issued: SystemTime },
    /// The operator has one, last changed then.
    Files { files: Files, changed: Changed },
}

/// When each file was last changed; `None`: it could not be looked at.
type Changed = [Option<SystemTime>; 2];

impl Certificates {
    /// Makes a certificate for a server of the file system with this key, or reads the operator's.
    pub(crate) fn open(
        signing_key: &[u8],
        files: Option<&Files>,
        names: Names,
    ) -> anyhow::Result<Certificates> {
        let Some(files) = files else {
            let authority = Box::new(Authority::derive(signing_key)?);
            let issued = now();
            let identity = authority.issue(&names, issued)?;
            let connector = Connector::new(Trust::Authority(authority.fingerprint()))?;
            let authority_pem = Some(authority.pem().to_owned());
            let source = Arc::new(Mutex::new(Source::Issued { authority, names, issued }));
            let acceptor = Acceptor::new(identity)?;
            return Ok(Certificates { acceptor, source, authority_pem, connector });
        };
        let changed = changed(files);
        let identity = Identity::read(&files.cert, &files.key)?;
        warn_of_end(&files.cert, &identity);
        Ok(Certificates {
            acceptor: Acceptor::new(identity)?,
            source: Arc::new(Mutex::new(Source::Files { files: files.clone(), changed })),
            authority_pem: None,
            connector: Connector::new(Trust::read(&files.ca)?)?,
        })
    }

    /// Accepts connections with the certificate that is in force at the time.
    pub(crate) fn acceptor(&self) -> Acceptor {
        self.acceptor.clone()
    }

    /// The rule for connections to other servers: all are encrypted with `always`, or those to other
    /// machines.
    pub(crate) fn encryption(&self, always: bool) -> Encryption {
        let connector = self.connector.clone();
        if always { Encryption::Always(connector) } else { Encryption::Elsewhere(Some(connector)) }
    }

    /// The certificate of the file system's authority, if this server's is of it.
    pub(crate) fn authority_pem(&self) -> Option<&str> {
        self.authority_pem.as_deref()
    }

    /// Renews the certificate for as long as the server runs.
    pub(crate) async fn renew(self) {
        match &mut *self.source.lock().await {
            Source::Issued { authority, names, issued } => loop {
                tokio::time::sleep(AGE_LOOK_PERIOD).await;
                let now = now();
                if !is_old(*issued, now) {
                    continue;
                }
                match authority.issue(names, now) {
                    Ok(identity) => {
                        *issued = now;
                        self.acceptor.renew(identity);
                    }
                    Err(error) => {
                        tracing::error!(%error, "the server's certificate is not renewed");
                    }
                }
            },
            Source::Files { files, changed } => {
                let mut seen = Seen { changed: *changed, warned: Instant::now(), failed: None };
                loop {
                    tokio::time::sleep(LOOK_PERIOD).await;
                    let (acceptor, files) = (self.acceptor.clone(), files.clone());
                    // A disk that hangs must hold up no request.
                    let looked = tokio::task::spawn_blocking(move || {
                        look(&acceptor, &files, &mut seen);
                        seen
                    });
                    match looked.await {
                        Ok(after) => seen = after,
                        Err(error) => {
                            return tracing::error!(%error, "certificates are looked at no more");
                        }
                    }
                }
            }
        }
    }
}

/// Whether a certificate that was issued then needs a successor now. One that was issued in the
/// future was made before the clock was set back.
fn is_old(issued: SystemTime, now: SystemTime) -> bool {
    now.duration_since(issued).map_or(true, |age| age > ISSUE_PERIOD)
}

/// The operator's files as they were last looked at.
struct Seen {
    changed: Changed,
    warned: Instant,
    /// The error of the last attempt to read them, which is logged once.
    failed: Option<String>,
}

/// Reads the operator's files again if they have changed. A pair that does not fit, as while one of
/// both files is written, is looked at again.
fn look(acceptor: &Acceptor, files: &Files, seen: &mut Seen) {
    let now = changed(files);
    let warns = seen.warned.elapsed() > WARN_PERIOD;
    if now == seen.changed && !warns {
        return;
    }
    match Identity::read(&files.cert, &files.key) {
        Ok(identity) => {
            if now != seen.changed {
                let cert = files.cert.display();
                tracing::info!(%cert, "the new certificate is in force for new connections");
            }
            *seen = Seen { changed: now, warned: Instant::now(), failed: None };
            warn_of_end(&files.cert, &identity);
            acceptor.renew(identity);
        }
        Err(error) => {
            let error = error.to_string();
            if seen.failed.as_ref() != Some(&error) {
                tracing::error!(error, "the certificate of before stays in force");
                seen.failed = Some(error);
            }
        }
    }
}

/// The time of this machine.
pub(crate) fn now() -> SystemTime {
    let now = SystemClock.now();
    let since = Duration::new(u64::try_from(now.sec).unwrap_or_default(), now.nsec);
    SystemTime::UNIX_EPOCH + since
}

fn changed(files: &Files) -> Changed {
    let changed = |file: &Path| fs::metadata(file).and_then(|found| found.modified()).ok();
    [changed(&files.cert), changed(&files.key)]
}

/// Says that an operator's certificate ends soon, or has ended.
fn warn_of_end(cert: &Path, identity: &Identity) {
    let left = identity.left(now());
    let (cert, ends) = (cert.display(), humantime::format_rfc3339_seconds(identity.ends()));
    if left.is_zero() {
        tracing::error!(%cert, %ends, "the server's certificate has ended: nobody connects with TLS");
    } else if left < WARN_LEFT {
        tracing::warn!(%cert, %ends, "the server's certificate ends soon");
    }
}

/// The names of a server that listens at `address`, shows its page at `page`, and that others know
/// at `advertised`.
pub(crate) fn names(
    server: u16,
    (address, page): (SocketAddr, Option<SocketAddr>),
    advertised: Option<&str>,
) -> Names {
    let advertised = advertised.and_then(|address| address.rsplit_once(':')).map(|(host, _)| host);
    let advertised_ip = advertised.and_then(|host| host.trim_matches(['[', ']']).parse().ok());
    let own = [Some(address), page].into_iter().flatten().map(|address| address.ip());
    let this_machine = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let all = own.filter(|ip| !ip.is_unspecified()).chain(advertised_ip).chain(this_machine);
    let addresses: BTreeSet<IpAddr> = all.collect();
    let addresses = addresses.into_iter().collect();
    let host = match advertised {
        Some(host) if advertised_ip.is_none() => host.to_owned(),
        Some(_) | None => crate::system::host_name(),
    };
    Names { server, addresses, host: Some(host) }
}

/// Reads the files that the command line names; all three are needed.
pub(crate) fn files(
    cert: Option<&Path>,
    key: Option<&Path>,
    ca: Option<&Path>,
) -> anyhow::Result<Option<Files>> {
    let absolute = |file: &Path| {
        std::path::absolute(file).with_context(|| format!("cannot find {}", file.display()))
    };
    match (cert, key, ca) {
        (Some(cert), Some(key), Some(ca)) => {
            Ok(Some(Files { cert: absolute(cert)?, key: absolute(key)?, ca: absolute(ca)? }))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_as_others_reach_it() {
        let page = Some("10.0.0.2:7421".parse().unwrap());
        let at = |address: &str, advertised| names(3, (address.parse().unwrap(), page), advertised);
        let has = |names: &Names, ip: &str| names.addresses.contains(&ip.parse().unwrap());
        let own = at("10.0.0.1:7420", None);
        assert_eq!(own.server, 3);
        assert!(["10.0.0.1", "10.0.0.2", "127.0.0.1", "::1"].iter().all(|ip| has(&own, ip)));
        let anywhere = at("0.0.0.0:7420", Some("files.example:7420"));
        assert_eq!(anywhere.host.as_deref(), Some("files.example"));
        assert!(!has(&anywhere, "0.0.0.0"));
        assert!(has(&at("0.0.0.0:7420", Some("[fd00::1]:7420")), "fd00::1"));
    }

    #[test]
    fn a_certificate_is_renewed_daily_and_when_the_clock_was_set() {
        let (now, hour) = (now(), Duration::from_secs(3600));
        assert!(!is_old(now, now) && !is_old(now - 23 * hour, now));
        assert!(is_old(now - 25 * hour, now) && is_old(now + hour, now));
    }

    #[tokio::test]
    async fn an_operators_certificate_is_read_again_when_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let files = Files { cert: file("cert"), key: file("key"), ca: file("ca") };
        assert!(Certificates::open(b"key", Some(&files), names(0, (any(), None), None)).is_err());
        let mut seen = Seen { changed: [None, None], warned: Instant::now(), failed: None };
        let authority = Authority::derive(b"key").unwrap();
        let issued = authority.issue(&names(0, (any(), None), None), now()).unwrap();
        let acceptor = Acceptor::new(issued).unwrap();
        fs::write(&files.cert, "nothing").unwrap();
        look(&acceptor, &files, &mut seen);
        assert_eq!(seen.changed, [None, None], "a wrong file is looked at again");
        assert!(seen.failed.is_some_and(|error| error.contains("no certificate")));
    }

    fn any() -> SocketAddr {
        "0.0.0.0:1".parse().unwrap()
    }
}
