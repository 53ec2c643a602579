//! The workers of `bench md`: threads with native clients, or processes that make system calls.
//!
//! Each is sent steps and answers each of them once, over one channel for all. The first signal
//! stops the step that is being done, and the run then removes what it made; the second signal ends
//! also that.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::Context as _;
use bench::{Crew, Error, Plan, Step, Target, Timing, Worker};
use client::Client;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::rank::{Order, Said};
use crate::{
    connect::{self, Credentials},
    signals::Stop,
};

type Answer = Result<Timing, Error>;

/// All workers of a run.
pub(crate) struct Workers {
    hands: Vec<Hand>,
    answers: UnboundedReceiver<Answer>,
    stop: Arc<AtomicBool>,
    signals: Stop,
    /// A signal came; a second one ends everything.
    interrupted: bool,
    /// The workers are not waited for any more.
    abandoned: bool,
}

/// A worker, seen from where it is told what to do.
enum Hand {
    Thread { steps: UnboundedSender<Step>, thread: JoinHandle<()> },
    Process { orders: ChildStdin, child: Child, reader: JoinHandle<()> },
}

impl Workers {
    /// Workers with native clients, which share `connections` among them. Returns when all are
    /// connected.
    pub(crate) async fn threads(
        plan: &Plan,
        servers: &[String],
        credentials: &Credentials,
        connections: usize,
        signals: Stop,
    ) -> anyhow::Result<Workers> {
        let count = plan.ranks.min(connections);
        let (answer, answers) = unbounded_channel();
        let stop = Arc::new(AtomicBool::new(false));
        let mut hands = Vec::new();
        for number in 0..count {
            let of_worker = |all: usize| (number..all).step_by(count);
            let purpose = format!("pando bench, worker {number}");
            let config = connect::config(servers.to_vec(), credentials.clone(), &purpose);
            let work = ThreadWork {
                plan: plan.clone(),
                ranks: of_worker(plan.ranks).collect(),
                configs: of_worker(connections).map(|_| config.clone()).collect(),
                stop: Arc::clone(&stop),
                answer: answer.clone(),
            };
            let (steps, to_do) = unbounded_channel();
            let thread = thread::Builder::new().name(format!("worker-{number}"));
            let thread = thread.spawn(move || work.run(to_do)).context("cannot start a thread")?;
            hands.push(Hand::Thread { steps, thread });
        }
        let mut workers = Workers::new(hands, answers, stop, signals);
        // The first answer of each worker says that it is connected.
        workers.gather().await?;
        Ok(workers)
    }

    /// A worker for each rank, which makes system calls in `directory`.
    pub(crate) fn processes(
        plan: &Plan,
        directory: &Path,
        signals: Stop,
    ) -> anyhow::Result<Workers> {
        let (answer, answers) = unbounded_channel();
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut hands = Vec::new();
        for rank in 0..plan.ranks {
            let mut command = Command::new(&program);
            command.args(["bench", "rank", "--rank", &rank.to_string()]);
            command.args(["--plan", &serde_json::to_string(plan)?]).arg("--").arg(directory);
            // In a group of its own: the signals of a terminal are for us.
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
            let mut child = command.spawn().context("cannot start a rank")?;
            let orders = child.stdin.take().expect("it is piped");
            let said = child.stdout.take().expect("it is piped");
            let answer = answer.clone();
            let reader = thread::Builder::new().name(format!("reader-{rank}"));
            let reader = reader.spawn(move || read_answers(said, &answer));
            let reader = reader.context("cannot start a thread")?;
            hands.push(Hand::Process { orders, child, reader });
        }
        Ok(Workers::new(hands, answers, Arc::default(), signals))
    }

    fn new(
        hands: Vec<Hand>,
        answers: UnboundedReceiver<Answer>,
        stop: Arc<AtomicBool>,
        signals: Stop,
    ) -> Workers {
        Workers { hands, answers, stop, signals, interrupted: false, abandoned: false }
    }

    /// Waits until every worker has answered.
    async fn gather(&mut self) -> Result<Vec<Timing>, Error> {
        let mut timings = Vec::new();
        let mut failed: Option<Error> = None;
        let mut stopped = false;
        for _ in 0..self.hands.len() {
            let answer = loop {
                tokio::select! {
                    answer = self.answers.recv() => break answer.unwrap_or_else(lost),
                    () = self.signals.asked() => {
                        if self.interrupted {
                            self.abandoned = true;
                            return Err(Error::Interrupted);
                        }
                        (self.interrupted, stopped) = (true, true);
                        self.stop_step();
                    }
                }
            };
            match answer {
                Ok(timing) => timings.push(timing),
                Err(error) => {
                    self.stop_step();
                    // The rank where it began says more than those that were stopped for it.
                    if failed.as_ref().is_none_or(|first| matches!(first, Error::Interrupted)) {
                        failed = Some(error);
                    }
                }
            }
        }
        match failed {
            Some(error) => Err(error),
            None if stopped => Err(Error::Interrupted),
            None => Ok(timings),
        }
    }

    /// Tells all workers to begin nothing more in the present step.
    fn stop_step(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for hand in &mut self.hands {
            if let Hand::Process { orders, .. } = hand {
                // One that is gone has answered.
                let _ = give(orders, &Order::Stop);
            }
        }
    }

    /// Waits until all workers have ended.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        for hand in self.hands {
            match hand {
                // Threads end with the program.
                Hand::Thread { .. } if self.abandoned => {}
                Hand::Process { mut child, .. } if self.abandoned => {
                    child.kill().context("cannot end a rank")?;
                    child.wait().context("cannot wait for a rank")?;
                }
                Hand::Thread { steps, thread } => {
                    drop(steps);
                    // A panic was logged.
                    let _ = thread.join();
                }
                Hand::Process { orders, mut child, reader } => {
                    drop(orders);
                    child.wait().context("cannot wait for a rank")?;
                    let _ = reader.join();
                }
            }
        }
        Ok(())
    }
}

impl Crew for Workers {
    async fn step(&mut self, step: Step) -> Result<Vec<Timing>, Error> {
        for hand in &mut self.hands {
            let given = match hand {
                Hand::Thread { steps, .. } => steps.send(step).is_ok(),
                Hand::Process { orders, .. } => give(orders, &Order::Step(step)).is_ok(),
            };
            if !given {
                return lost().map(|_| Vec::new());
            }
        }
        self.gather().await
    }
}

fn lost() -> Answer {
    Err(Error::Worker("a rank ended early".to_owned()))
}

fn give(orders: &mut ChildStdin, order: &Order) -> std::io::Result<()> {
    writeln!(orders, "{}", serde_json::to_string(order)?)
}

fn read_answers(said: ChildStdout, answer: &UnboundedSender<Answer>) {
    for line in BufReader::new(said).lines().map_while(Result::ok) {
        let said = match serde_json::from_str::<Said>(&line) {
            Ok(Ok(timing)) => Ok(timing),
            Ok(Err(None)) => Err(Error::Interrupted),
            Ok(Err(Some(words))) => Err(Error::Worker(words)),
            Err(_) => lost(),
        };
        if answer.send(said).is_err() {
            return;
        }
    }
    // If it still owed an answer, this is it.
    let _ = answer.send(lost());
}

/// Arguments with which a thread becomes a worker.
struct ThreadWork {
    plan: Plan,
    ranks: Vec<usize>,
    configs: Vec<client::Config>,
    stop: Arc<AtomicBool>,
    answer: UnboundedSender<Answer>,
}

impl ThreadWork {
    fn run(self, steps: UnboundedReceiver<Step>) {
        let answer = self.answer.clone();
        let ended = connect::runtime().and_then(|runtime| runtime.block_on(self.serve(steps)));
        if let Err(error) = ended {
            // The main thread reports it, if it still listens.
            let _ = answer.send(Err(Error::Worker(format!("{error:#}"))));
        }
    }

    async fn serve(self, mut steps: UnboundedReceiver<Step>) -> anyhow::Result<()> {
        let mut clients: Vec<Client> = Vec::new();
        for config in self.configs {
            clients.push(connect::connect(config).await?);
        }
        let target = Target::Clients(clients.clone());
        let worker = Worker { plan: &self.plan, ranks: self.ranks, target, stop: &self.stop };
        let connected = self.answer.send(Ok(Timing::default()));
        if connected.is_ok() {
            while let Some(step) = steps.recv().await {
                if self.answer.send(Box::pin(worker.step(&step)).await).is_err() {
                    break;
                }
            }
        }
        for client in clients {
            client.close().await?;
        }
        Ok(())
    }
}
