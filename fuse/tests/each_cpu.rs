//! The crate against the real kernel, over io_uring with a thread for each CPU: all that `over_ring`
//! tests with one thread, and what only several do.

mod over_ring;

use std::{fs, sync::Mutex, thread, time::Duration};

use fuse::{Ended, Handler, NodeId, NullFs, Op, Reply, Request, Unmount};
use over_ring::{
    mounted::harness::{mount, null},
    stay_on,
};

/// A file system that notes which thread serves a look-up.
struct Noting(NullFs);

static NOTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Handler for Noting {
    fn request(&self, request: Request<'_>, reply: Reply) {
        if let Op::Lookup { .. } = request.op {
            let mut noted = NOTED.lock().expect("no test fails with it");
            noted.push(thread::current().name().unwrap_or_default().to_owned());
        }
        self.0.request(request, reply);
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.0.forget(node, lookups);
    }
}

#[test]
fn a_request_is_served_on_the_cpu_of_its_caller() {
    let make = || Noting(null(Duration::ZERO));
    let Some(mounted) = mount(1, &NullFs::init_options(), make) else { return };
    let cpus = thread::available_parallelism().unwrap().get();
    for cpu in 0..cpus.min(2) {
        let path = mounted.path("nothing");
        let noted = NOTED.lock().unwrap().len();
        thread::scope(|scope| {
            scope.spawn(|| {
                stay_on(cpu);
                for _ in 0..100 {
                    assert!(fs::metadata(&path).is_err());
                }
            });
        });
        let noted = NOTED.lock().unwrap().split_off(noted);
        assert!(noted.len() >= 100 && noted.iter().all(|name| *name == format!("test-{cpu}")));
    }
    assert_eq!(mounted.unmount(Unmount::WhenIdle), [Ended::Unmounted]);
}
