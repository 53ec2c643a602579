//! How slow connections end.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use wire::{Answer, Reply, Request, frame};

use super::world::{World, in_world};

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
            // The server may have ended it in between.
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
