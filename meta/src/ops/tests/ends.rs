//! The end of slow connections, and limits on connections and sessions.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use wire::{Answer, Hello, Reply, Request, Retry, Token, frame};

use super::world::{Setup, World, in_world, in_world_of};
use crate::Limits;

/// A connection that was opened, with bytes to read from it.
async fn opened(world: &mut World) -> DuplexStream {
    let mut stream = world.connect();
    stream.write_all(&frame::opening()).await.unwrap();
    stream
}

/// Whether the server has ended a connection.
async fn is_cut(stream: &mut DuplexStream) -> bool {
    let read = tokio::time::timeout(Duration::from_millis(1), stream.read_u8()).await;
    matches!(read, Ok(Err(_)))
}

#[test]
fn a_hello_of_a_byte_a_second_is_not_waited_for() {
    in_world(async |world| {
        let mut stream = opened(world).await;
        stream.write_all(&100_u32.to_le_bytes()).await.unwrap();
        for second in 0..20 {
            if is_cut(&mut stream).await {
                assert!((9..12).contains(&second), "{second}");
                return;
            }
            world.wait(Duration::from_secs(1)).await;
            // The server may have ended the connection in between.
            let _ = stream.write_all(&[1]).await;
        }
        panic!("it is waited for");
    });
}

#[test]
fn nobody_sends_much_before_a_hello() {
    in_world(async |world| {
        let mut stream = opened(world).await;
        stream.write_all(&(1_u32 << 20).to_le_bytes()).await.unwrap();
        world.settle().await;
        assert!(is_cut(&mut stream).await);
    });
}

#[test]
fn a_frame_that_begins_has_an_end() {
    in_world(async |world| {
        let mut idle = world.client().await;
        let mut slow = world.client().await;
        slow.send_bytes(&100_u32.to_le_bytes()).await;
        for _ in 0..13 {
            world.wait(Duration::from_secs(10)).await;
            idle.ask(Request::Ping).await;
            let _ = slow.try_send_bytes(&[7]).await;
        }
        assert!(slow.try_send_bytes(&[7]).await.is_err(), "it is waited for");
        assert_eq!(idle.ask(Request::Ping).await, Answer::Done(Reply::Nothing));
        idle.bye().await;
    });
}

fn hello(client: &str) -> Request {
    let (token, client) = (World::sign(&Token::administrator()), client.to_owned());
    Request::Hello(Hello { token, client, resume: None, kernel_checks: false })
}

#[test]
fn sessions_beyond_the_limit_wait_for_others_to_end() {
    let limits = Limits { sessions_max: 2, ..Limits::default() };
    in_world_of(Setup { limits, ..Setup::default() }, async |world| {
        let (mut first, mut second) = (world.client().await, world.client().await);
        assert_eq!(first.ask(hello("another")).await, Answer::Retry(Retry::Busy));
        assert_eq!(world.counter("sessions_refused"), 1);
        // A client that has a session comes back to it.
        second.resume(world).await;
        first.bye().await;
        let mut third = world.client().await;
        third.bye().await;
        second.bye().await;
    });
}

#[test]
fn a_session_has_so_many_connections_at_a_time() {
    in_world(async |world| {
        let mut client = world.client().await;
        let mut others = Vec::new();
        for _ in 1..64 {
            let mut other = world.client().await;
            other.bye().await;
            other.welcome = client.welcome.clone();
            other.resume(world).await;
            others.push(other);
        }
        let resume = Some(client.resume_of(client.welcome.session));
        let Request::Hello(hello) = hello("test") else { unreachable!() };
        let mut more = world.client().await;
        let again = Request::Hello(Hello { resume, ..hello });
        assert_eq!(more.ask(again.clone()).await, Answer::Retry(Retry::Busy));
        // A connection that is there already may say Hello again.
        assert!(matches!(client.ask(again.clone()).await, Answer::Done(Reply::Welcome(_))));
        drop(others.pop());
        world.settle().await;
        assert!(matches!(more.ask(again).await, Answer::Done(Reply::Welcome(_))));
        client.bye().await;
    });
}

#[test]
fn a_long_name_of_a_client_is_cut() {
    in_world(async |world| {
        let mut client = world.client().await;
        client.ask(hello(&"\u{e4}".repeat(5000))).await;
        let longest = world.server.status().sessions.into_iter().map(|s| s.client.len()).max();
        assert_eq!(longest, Some(1024));
    });
}
