//! An echo of frames: what a request and its answer cost when nothing is done in between.
//!
//! Two threads with a runtime each, as client and server have them. Both sides do what ours do in
//! bulk: take every frame that has arrived, and write all that came of it at once. Nothing is
//! decoded, and no request has a number.

use std::{io, thread, time::Duration};

use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    task::LocalSet,
};
use wire::frame::{put_frame, take_frame};

use super::FloorRow;
use crate::{
    clock::{monotonic, thread_cpu},
    summary::{float, micros, rounded},
};

/// Bytes of a create and of a stat in their frame, with names of about a dozen letters.
const REQUEST_BYTES: usize = 111;
/// Bytes of what is answered.
const REPLY_BYTES: usize = 122;
const READ_BYTES: usize = 64 << 10;

/// Load of the echo: connections and requests under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo {
    /// Connections.
    pub connections: usize,
    /// Requests under way at a time, over all connections; at least one on each.
    pub in_flight: usize,
    /// Requests in all.
    pub requests: usize,
}

/// CPU, time and latencies of one side.
struct Used {
    cpu: Duration,
    elapsed: Duration,
    latencies: Vec<u64>,
}

/// Runs it on loopback.
///
/// # Errors
/// When the machine has no loopback or no threads to give.
pub fn run(echo: &Echo) -> io::Result<FloorRow> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let (server, client) = thread::scope(|scope| {
        let server = thread::Builder::new().name("echo-server".to_owned());
        let server = server.spawn_scoped(scope, || serve(listener, echo.connections))?;
        let client = thread::Builder::new().name("echo-client".to_owned());
        let client = client.spawn_scoped(scope, || ask_all(address, echo))?;
        let ended = |side: thread::ScopedJoinHandle<'_, io::Result<Used>>| {
            side.join().unwrap_or_else(|_| Err(io::Error::other("a side of the echo panicked")))
        };
        // The server ends when the client has hung up.
        let client = ended(client);
        if client.is_err() {
            // The server may have fewer connections than it waits for.
            for _ in 0..echo.connections {
                drop(std::net::TcpStream::connect(address));
            }
        }
        Ok::<_, io::Error>((ended(server)?, client?))
    })?;
    let ops = u64::try_from(echo.requests).unwrap_or(u64::MAX);
    let each = |cpu: Duration| Some(rounded(cpu.as_secs_f64() * 1e6 / float(ops)));
    let mut latencies = client.latencies;
    latencies.sort_unstable();
    Ok(FloorRow {
        floor: name(echo),
        ops,
        ops_per_s: rounded(float(ops) / client.elapsed.as_secs_f64().max(1e-9)),
        p50_us: (!latencies.is_empty()).then(|| micros(&latencies, 500)),
        client_cpu_us_per_op: each(client.cpu),
        server_cpu_us_per_op: each(server.cpu),
    })
}

fn name(echo: &Echo) -> String {
    match echo.connections {
        1 => format!("echo_{}", echo.in_flight),
        connections => format!("echo_{}_over_{connections}", echo.in_flight),
    }
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn serve(listener: std::net::TcpListener, connections: usize) -> io::Result<Used> {
    let (cpu, start) = (thread_cpu(), monotonic());
    LocalSet::new().block_on(&runtime()?, async {
        let listener = TcpListener::from_std(listener)?;
        let mut tasks = Vec::new();
        for _ in 0..connections {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tasks.push(tokio::task::spawn_local(answer(stream)));
        }
        for task in tasks {
            task.await.map_err(io::Error::other)??;
        }
        Ok::<_, io::Error>(())
    })?;
    let cpu = thread_cpu().saturating_sub(cpu);
    Ok(Used { cpu, elapsed: monotonic().saturating_sub(start), latencies: Vec::new() })
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let reply = [0x5a; REPLY_BYTES];
    let (mut inbox, mut outbox) = (BytesMut::new(), Vec::new());
    loop {
        inbox.reserve(READ_BYTES);
        if stream.read_buf(&mut inbox).await? == 0 {
            return Ok(());
        }
        while let Some(request) = take_frame(&mut inbox).map_err(io::Error::other)? {
            std::hint::black_box(&request);
            put_frame(&mut outbox, |out| out.extend_from_slice(&reply));
        }
        stream.write_all(&outbox).await?;
        outbox.clear();
    }
}

fn ask_all(address: std::net::SocketAddr, echo: &Echo) -> io::Result<Used> {
    LocalSet::new().block_on(&runtime()?, async {
        let mut streams = Vec::new();
        for _ in 0..echo.connections {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        let part = |whole: usize, at: usize| {
            whole / echo.connections + usize::from(at < whole % echo.connections)
        };
        let (cpu, start) = (thread_cpu(), monotonic());
        let asking = streams.into_iter().enumerate().map(|(at, stream)| {
            let window = part(echo.in_flight, at).max(1);
            tokio::task::spawn_local(ask(stream, window, part(echo.requests, at)))
        });
        let mut latencies = Vec::new();
        for task in asking.collect::<Vec<_>>() {
            latencies.append(&mut task.await.map_err(io::Error::other)??);
        }
        let cpu = thread_cpu().saturating_sub(cpu);
        Ok(Used { cpu, elapsed: monotonic().saturating_sub(start), latencies })
    })
}

/// Sends `count` requests, never more than `window` unanswered. Times each when there is one at a
/// time.
async fn ask(mut stream: TcpStream, window: usize, count: usize) -> io::Result<Vec<u64>> {
    let request = [0xa5; REQUEST_BYTES];
    let (mut inbox, mut outbox) = (BytesMut::new(), Vec::new());
    let (mut sent, mut received) = (0, 0);
    let mut latencies = Vec::new();
    let mut room = window;
    while received < count {
        let more = room.min(count - sent);
        for _ in 0..more {
            put_frame(&mut outbox, |out| out.extend_from_slice(&request));
        }
        let start = (window == 1).then(monotonic);
        stream.write_all(&outbox).await?;
        outbox.clear();
        (sent, room) = (sent + more, room - more);
        inbox.reserve(READ_BYTES);
        if stream.read_buf(&mut inbox).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while let Some(reply) = take_frame(&mut inbox).map_err(io::Error::other)? {
            std::hint::black_box(&reply);
            (received, room) = (received + 1, room + 1);
        }
        if let Some(start) = start {
            let took = monotonic().saturating_sub(start).as_nanos();
            latencies.push(u64::try_from(took).unwrap_or(u64::MAX));
        }
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_answered_over_any_number_of_connections() {
        for (connections, in_flight) in [(1, 1), (1, 16), (3, 7)] {
            let row = run(&Echo { connections, in_flight, requests: 100 }).unwrap();
            assert_eq!((row.ops, row.p50_us.is_some()), (100, in_flight == 1), "{}", row.floor);
            assert!(row.ops_per_s > 0.0 && row.server_cpu_us_per_op > Some(0.0));
        }
    }
}
