//! Answers of the session itself, over a socket in place of the device.

use std::{cell::RefCell, os::fd::OwnedFd, rc::Rc};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::*;
use crate::{abi::opcode, request::OwnedRequest};

/// The kernel's end.
struct Kernel(OwnedFd);

impl Kernel {
    fn new() -> (Self, Connection) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        (Kernel(ours), Connection { channel: Arc::new(Channel::new(theirs)) })
    }

    fn send(&self, opcode: u32, unique: u64, body: &[u8]) {
        let len = u32::try_from(40 + body.len()).unwrap();
        let mut bytes = [len.to_ne_bytes(), opcode.to_ne_bytes()].concat();
        bytes.extend(unique.to_ne_bytes());
        bytes.extend([0; 24]);
        bytes.extend(body);
        rustix::net::send(&self.0, &bytes, SendFlags::empty()).unwrap();
    }

    fn send_init(&self, minor: u32) {
        let words = [7, minor, 1 << 17, u32::MAX];
        self.send(opcode::INIT, 2, words.map(u32::to_ne_bytes).as_flattened());
    }

    /// (unique, error, length of the body) of the next answer.
    fn answer(&self) -> Option<(u64, i32, usize)> {
        let mut bytes = [0; 4096];
        let (len, _) = rustix::net::recv(&self.0, &mut bytes[..], RecvFlags::empty()).ok()?;
        let word = |at: usize| i32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let unique = u64::from_ne_bytes(bytes[8..16].try_into().unwrap());
        // An empty message is the end of the session's side.
        (len > 0).then(|| (unique, word(4), len - 16))
    }
}

/// Keeps every request and its reply; what is forgotten goes through.
#[derive(Default)]
struct Keeps {
    kept: RefCell<Vec<(OwnedRequest, Reply)>>,
    forgotten: RefCell<Vec<(NodeId, u64)>>,
    destroyed: RefCell<bool>,
}

impl Handler for Keeps {
    fn request(&self, request: Request<'_>, reply: Reply) {
        self.kept.borrow_mut().push((request.detach(), reply));
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.forgotten.borrow_mut().push((node, lookups));
    }

    fn destroy(&self) {
        *self.destroyed.borrow_mut() = true;
    }
}

/// Starts a session, and hands each of the messages that `kernel` has sent to `handler`.
fn dispatch(kernel: &Kernel, connection: Connection, handler: &Keeps) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let session = Session::start(connection, &InitOptions::default()).await.unwrap();
        assert_eq!(kernel.answer(), Some((2, 0, 64)));
        let mut buffer = session.desk.pool.get();
        while let Next::Bytes(len) =
            next(session.channel(), writable(&mut buffer, &session.desk.pool)).unwrap()
        {
            session.desk.dispatch(&buffer, len, None, handler);
        }
    });
}

#[test]
fn unknown_and_malformed_messages_are_answered_and_forgets_are_not() {
    let (kernel, connection) = Kernel::new();
    let handler = Keeps::default();
    kernel.send_init(45);
    kernel.send(4000, 4, b"whatever");
    kernel.send(opcode::LOOKUP, 6, b"name without an end");
    kernel.send(opcode::FORGET, 8, &3_u64.to_ne_bytes());
    kernel.send(opcode::DESTROY, 10, b"");
    kernel.send(opcode::INIT, 12, &[0; 64]);
    dispatch(&kernel, connection, &handler);

    assert_eq!(kernel.answer(), Some((4, -Errno::NOSYS.raw_os_error(), 0)));
    assert_eq!(kernel.answer(), Some((6, -Errno::IO.raw_os_error(), 0)));
    assert_eq!(*handler.forgotten.borrow(), [(NodeId(0), 3)]);
    assert_eq!(kernel.answer(), Some((10, 0, 0)));
    assert!(*handler.destroyed.borrow());
    assert_eq!(kernel.answer(), Some((12, -Errno::IO.raw_os_error(), 0)));
    assert_eq!(kernel.answer(), None);
}

#[test]
fn an_interrupt_marks_its_request_and_one_without_is_asked_for_again() {
    let (kernel, connection) = Kernel::new();
    let handler = Keeps::default();
    kernel.send_init(45);
    kernel.send(opcode::READLINK, 4, b"");
    kernel.send(opcode::READLINK, 6, b"");
    kernel.send(opcode::INTERRUPT, 7, &6_u64.to_ne_bytes());
    kernel.send(opcode::INTERRUPT, 9, &8_u64.to_ne_bytes());
    dispatch(&kernel, connection, &handler);

    let interrupted: Vec<bool> =
        handler.kept.borrow().iter().map(|(_, reply)| reply.is_interrupted()).collect();
    assert_eq!(interrupted, [false, true]);
    assert_eq!(kernel.answer(), Some((9, -Errno::AGAIN.raw_os_error(), 0)));
    handler.kept.take().into_iter().for_each(|(_, reply)| reply.error(Errno::INTR));
    assert_eq!(kernel.answer(), Some((4, -Errno::INTR.raw_os_error(), 0)));
    assert_eq!(kernel.answer(), Some((6, -Errno::INTR.raw_os_error(), 0)));
}

#[test]
fn a_kernel_that_is_too_old_is_refused() {
    let (kernel, connection) = Kernel::new();
    kernel.send_init(30);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let started = runtime.block_on(Session::start(connection, &InitOptions::default()));
    assert!(matches!(started, Err(SessionError::TooOld)));
    assert_eq!(kernel.answer(), Some((2, -Errno::PROTO.raw_os_error(), 0)));
}

/// Answers from a task, a few turns after the request came, and notes both.
struct Beside(Rc<RefCell<Vec<&'static str>>>);

impl Handler for Beside {
    fn request(&self, _: Request<'_>, reply: Reply) {
        let events = Rc::clone(&self.0);
        events.borrow_mut().push("read");
        tokio::task::spawn_local(async move {
            for _ in 0..4 {
                turn().await;
            }
            events.borrow_mut().push("answered");
            reply.ok();
        });
    }

    fn forget(&self, _: NodeId, _: u64) {}
}

#[test]
fn what_a_task_beside_can_answer_is_answered_before_the_next_request_is_read() {
    let (kernel, connection) = Kernel::new();
    kernel.send_init(45);
    let events = Rc::new(RefCell::new(Vec::new()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let session = Session::start(connection, &InitOptions::default()).await.unwrap();
        kernel.send(opcode::READLINK, 4, b"");
        kernel.send(opcode::READLINK, 6, b"");
        let handler = Beside(Rc::clone(&events));
        let running = tokio::task::spawn_local(async move { session.run(&handler).await });
        while events.borrow().len() < 4 {
            tokio::task::yield_now().await;
        }
        running.abort();
    });
    assert_eq!(*events.borrow(), ["read", "answered", "read", "answered"]);
}
