//! How two machines of a region come to trust each other.
//!
//! The lead's certificate is of an authority that follows from the secret, so whoever has the
//! secret knows the lead. The front end proves that it has the secret with a proof that is bound to
//! the connection (RFC 9266): seen on one, it is worth nothing on another.

use std::time::{Duration, SystemTime};

use base::{Attr, Decode as _};
use bytes::{Bytes, BytesMut};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tls::{
    Acceptor, Authority, Binding, ClientStream, Connector, Identity, Names, ServerStream, Trust,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};
use wire::{
    Stream,
    frame::{put_frame, take_frame_within},
};

use super::{
    message::{Hello, VERSION, Welcome},
    secret::Secret,
};

/// Time within which the other end says who it is.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// Most bytes of what is said before the other end is known.
const BYTES_MAX: usize = 4096;

/// The lead is known by its authority, wherever it is.
const HOST: &str = "localhost";

/// The subject of a front end's proof.
const LABEL: &[u8] = b"pando region front end 1";

/// Why two machines do not come together.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The connection is not encrypted, or not to that region.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// The other end does not have the secret.
    #[error("it does not have the region's secret")]
    Secret,
    /// The other end has other messages.
    #[error("it is of another version of this program")]
    Version,
    /// The lead does not want this machine.
    #[error("{0}")]
    Refused(String),
    /// The other end says nothing, or something else.
    #[error("it does not speak as a region does")]
    Silent,
}

impl Secret {
    fn authority(&self) -> Result<Authority, tls::Error> {
        Authority::derive(&self.0)
    }

    fn proof(&self, binding: &Binding) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(LABEL);
        mac.update(binding);
        mac
    }

    /// The lead shows this to whoever connects, for a week from `now`.
    ///
    /// # Errors
    /// When the cryptographic library fails.
    pub fn identity(&self, now: SystemTime) -> Result<Identity, tls::Error> {
        let names = Names { server: 0, addresses: Vec::new(), host: None };
        self.authority()?.issue(&names, now)
    }
}

/// The lead's part: finds out who connects. Returns the stream to serve, and the machine's name.
/// `root` says what the region's directory is like, or why nobody may come.
///
/// # Errors
/// When whoever connects does not have the secret, or the connection fails.
pub async fn accept<S: Stream + 'static>(
    stream: S,
    acceptor: &Acceptor,
    secret: &Secret,
    root: impl FnOnce() -> Result<Attr, String>,
) -> Result<(ServerStream<S>, String), JoinError> {
    let (mut stream, binding) = acceptor.accept(stream).await?;
    let hello = Hello::from_bytes(&first_frame(&mut stream).await?);
    let hello = hello.map_err(|_| JoinError::Silent)?;
    if secret.proof(&binding).verify_slice(&hello.proof).is_err() {
        return Err(JoinError::Secret);
    }
    let refused = if hello.version == VERSION {
        match root() {
            Ok(attr) => {
                say(&mut stream, &Welcome::Come(attr)).await?;
                return Ok((stream, hello.machine));
            }
            Err(why) => JoinError::Refused(why),
        }
    } else {
        JoinError::Version
    };
    say(&mut stream, &Welcome::Refused(refused.to_string())).await?;
    Err(refused)
}

/// The front end's part: proves to the lead that it may come, as `machine`. Returns the
/// stream for [`super::Front::over`], and the attributes of the region's directory.
///
/// # Errors
/// When the other end is not the lead, or refuses.
pub async fn reach<S: Stream + 'static>(
    stream: S,
    secret: &Secret,
    machine: &str,
) -> Result<(ClientStream<S>, Attr), JoinError> {
    let connector = Connector::new(Trust::Authority(secret.authority()?.fingerprint()))?;
    let connecting = connector.connect(stream, HOST, None);
    let connected = timeout(HELLO_WITHIN, connecting).await.map_err(|_| JoinError::Silent)?;
    let (mut stream, binding) = connected?;
    let proof = secret.proof(&binding).finalize().into_bytes();
    let proof = Bytes::copy_from_slice(&proof);
    let machine = machine.chars().take(255).collect();
    say(&mut stream, &Hello { version: VERSION, proof, machine }).await?;
    let welcome = Welcome::from_bytes(&first_frame(&mut stream).await?);
    match welcome.map_err(|_| JoinError::Silent)? {
        Welcome::Come(attr) => Ok((stream, attr)),
        Welcome::Refused(why) => Err(JoinError::Refused(why)),
    }
}

async fn say(stream: &mut impl Stream, what: &impl base::Encode) -> Result<(), JoinError> {
    let mut out = Vec::new();
    put_frame(&mut out, |out| what.encode(out));
    stream.write_all(&out).await.map_err(|_| JoinError::Silent)?;
    stream.flush().await.map_err(|_| JoinError::Silent)
}

/// The first frame, and no byte of the next one.
async fn first_frame(stream: &mut impl Stream) -> Result<Bytes, JoinError> {
    let reading = async {
        let mut buffer = BytesMut::zeroed(4);
        stream.read_exact(&mut buffer).await.map_err(|_| JoinError::Silent)?;
        let len = u32::from_le_bytes(buffer[..4].try_into().expect("four bytes"));
        let len = usize::try_from(len).ok().filter(|len| *len <= BYTES_MAX);
        buffer.resize(4 + len.ok_or(JoinError::Silent)?, 0);
        stream.read_exact(&mut buffer[4..]).await.map_err(|_| JoinError::Silent)?;
        let frame = take_frame_within(&mut buffer, BYTES_MAX).map_err(|_| JoinError::Silent)?;
        frame.ok_or(JoinError::Silent)
    };
    timeout(HELLO_WITHIN, reading).await.map_err(|_| JoinError::Silent)?
}
