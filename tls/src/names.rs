//! Names in certificates: which server of which file system.

use std::net::IpAddr;

use rcgen::SanType;

/// Ending of the names of all servers.
const ENDING: &str = "pando";

/// The names of a server: its number, by which programs of this project know it, and where it
/// listens, for browsers and scrapers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Number of the server in its cluster; 0 where there is only one.
    pub server: u16,
    /// Addresses at which other programs reach the server.
    pub addresses: Vec<IpAddr>,
    /// Name of the machine, if it is fit for a certificate.
    pub host: Option<String>,
}

impl Names {
    /// The names as a certificate of the file system with this authority has them.
    pub(crate) fn to_alternatives(&self, authority: &[u8; 32]) -> Vec<SanType> {
        let dns = |name: &str| name.try_into().ok().map(SanType::DnsName);
        let own = dns(&name_of(self.server, authority));
        let host = self.host.as_deref().and_then(dns);
        let addresses = self.addresses.iter().map(|address| SanType::IpAddress(*address));
        own.into_iter().chain(host).chain(addresses).collect()
    }
}

/// Name of a server in its file system, `server-NUMBER.FILESYSTEM.pando`: the file system is named
/// by the first half of its authority's fingerprint, as a label of a name has 63 characters at most.
pub(crate) fn name_of(server: u16, authority: &[u8; 32]) -> String {
    let file_system: String = authority[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("server-{server}.{file_system}.{ENDING}")
}

/// The number in a server's name; `None`: the name is of something else.
pub(crate) fn server_of(name: &str) -> Option<u16> {
    let (server, rest) = name.split_once('.')?;
    let (file_system, ending) = rest.split_once('.')?;
    let is_id = file_system.len() == 32 && file_system.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_id && ending == ENDING).then(|| server.strip_prefix("server-")?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_the_server() {
        assert_eq!(server_of(&name_of(7, &[5; 32])), Some(7));
        let id = "0".repeat(32);
        for other in ["", "server-1", "server-1.pando", "localhost", "server-x.y.pando"] {
            assert_eq!(server_of(other), None, "{other}");
        }
        for other in [format!("server-1.{id}.pand"), format!("x-1.{id}.pando")] {
            assert_eq!(server_of(&other), None, "{other}");
        }
    }
}
