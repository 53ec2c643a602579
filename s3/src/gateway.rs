//! The gateway: its accounts, and what the calls of S3 share.

use std::{
    collections::BTreeMap,
    hash::{Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use base::{EntryName, HashMap, Random};
use client::Error;
use s3s::{
    S3ErrorCode, S3Result,
    auth::{Credentials, SecretKey},
};
use tokio::sync::{Mutex, MutexGuard};
use wire::DirRef;

use crate::{
    Account,
    error::of,
    fs::Fs,
    key::{self, Key},
    list::Sorted,
    tree,
};

/// Number of locks that keys share.
const LOCKS: usize = 256;

/// Settings that an operator chooses.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The directory that has the buckets: an absolute path.
    pub root: String,
    /// Age at which staged files and uploads are removed.
    pub abandoned_after: Duration,
}

/// Numbers of uses by the random names of what is used.
type AllUsed = Arc<parking_lot::Mutex<HashMap<EntryName, usize>>>;

/// A staged file or an upload that a request uses, so that it is not cleaned.
pub(crate) struct Used {
    name: EntryName,
    all: AllUsed,
}

impl Used {
    pub(crate) fn name(&self) -> EntryName {
        self.name.clone()
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(uses) = all.get_mut(&self.name) {
            *uses -= 1;
            if *uses == 0 {
                all.remove(&self.name);
            }
        }
    }
}

/// The gateway.
pub struct Gateway {
    accounts: BTreeMap<String, Account>,
    pub(crate) settings: Settings,
    random: Arc<dyn Random>,
    pub(crate) sorted: Arc<Sorted>,
    locks: Vec<Mutex<()>>,
    upload_locks: Vec<Mutex<()>>,
    used: AllUsed,
    /// Held while a directory is made an object, or removed because it is none.
    pub(crate) dirs: Mutex<()>,
}

impl Gateway {
    /// A gateway for these accounts.
    #[must_use]
    pub fn new(accounts: Vec<Account>, settings: Settings, random: Arc<dyn Random>) -> Gateway {
        let named = accounts.into_iter().map(|account| (account.access_key().to_owned(), account));
        Gateway {
            accounts: named.collect(),
            settings,
            random,
            sorted: Arc::default(),
            locks: (0..LOCKS).map(|_| Mutex::default()).collect(),
            upload_locks: (0..LOCKS).map(|_| Mutex::default()).collect(),
            used: AllUsed::default(),
            dirs: Mutex::default(),
        }
    }

    /// One account of each session; one that may change things if there is one.
    pub(crate) fn sessions(&self) -> Vec<&Account> {
        let mut sessions: BTreeMap<usize, &Account> = BTreeMap::new();
        for account in self.accounts.values() {
            let one = sessions.entry(account.session_id()).or_insert(account);
            if one.read_only {
                *one = account;
            }
        }
        sessions.into_values().collect()
    }

    /// The secret half of an access key.
    pub(crate) fn secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let account = self.accounts.get(access_key).ok_or(S3ErrorCode::InvalidAccessKeyId)?;
        Ok(SecretKey::from(account.secret_key.clone()))
    }

    /// Tells sessions apart.
    pub(crate) fn session_id(&self, credentials: Option<&Credentials>) -> S3Result<usize> {
        Ok(self.account(credentials, false)?.session_id())
    }

    /// The account of a request; `changes` says whether it changes something.
    fn account(&self, credentials: Option<&Credentials>, changes: bool) -> S3Result<&Account> {
        let key = credentials.ok_or(S3ErrorCode::AccessDenied)?;
        let account = self.accounts.get(&key.access_key).ok_or(S3ErrorCode::InvalidAccessKeyId)?;
        if changes && account.read_only {
            return Err(S3ErrorCode::AccessDenied.into());
        }
        Ok(account)
    }

    pub(crate) async fn reading(&self, credentials: Option<&Credentials>) -> S3Result<Fs> {
        self.account(credentials, false)?.fs().await
    }

    pub(crate) async fn writing(&self, credentials: Option<&Credentials>) -> S3Result<Fs> {
        self.account(credentials, true)?.fs().await
    }

    /// Looks whether the root is there, for one of the sessions at least.
    ///
    /// # Errors
    /// When none has it.
    pub async fn check_root(&self) -> client::Result<()> {
        let mut found = Err(base::FsError::NotFound.into());
        for account in self.sessions() {
            let Ok(fs) = account.fs().await else { continue };
            found = fs.dir(&self.settings.root).await.map(drop);
            if found.is_ok() {
                break;
            }
        }
        found
    }

    pub(crate) async fn bucket(&self, fs: &Fs, name: &str) -> S3Result<DirRef> {
        tree::bucket(fs, &self.settings.root, name).await
    }

    /// All buckets by their names, with when they were made.
    pub(crate) async fn buckets(&self, fs: &Fs) -> S3Result<Vec<(String, DirRef, base::Time)>> {
        let told = |error: Error| of(&error, S3ErrorCode::NoSuchBucket);
        let root = fs.dir(&self.settings.root).await.map_err(told)?;
        let (entries, _) = fs.entries(&root).await.map_err(told)?;
        let mut buckets: Vec<_> = entries
            .into_iter()
            .filter_map(|listed| {
                let name = String::from_utf8(listed.name.as_bytes().to_vec()).ok()?;
                let entry = listed.entry.filter(|_| key::is_bucket(&name))?;
                Some((name, entry.dir?, entry.attr.btime))
            })
            .collect();
        buckets.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(buckets)
    }

    /// A number that nothing else has, as 32 hex digits.
    pub(crate) fn unique_id(&self) -> String {
        format!("{:016x}{:016x}", self.random.next(), self.random.next())
    }

    /// The name of a staged file.
    pub(crate) fn unique(&self, what: &str) -> Used {
        let name = format!("{what}-{}", self.unique_id());
        self.uses(EntryName::new(name.as_bytes()).expect("words and digits are a name"))
    }

    /// Takes note that a staged file or an upload is in use.
    pub(crate) fn uses(&self, name: EntryName) -> Used {
        *self.used.lock().entry(name.clone()).or_insert(0) += 1;
        Used { name, all: Arc::clone(&self.used) }
    }

    /// Whether a request uses a staged file or an upload.
    pub(crate) fn is_used(&self, name: &EntryName) -> bool {
        self.used.lock().contains_key(name)
    }

    /// The lock of an upload: one request at a time completes, aborts or cleans it.
    pub(crate) async fn lock_upload(&self, id: &EntryName) -> MutexGuard<'_, ()> {
        let mut hasher = std::hash::DefaultHasher::new();
        id.as_bytes().hash(&mut hasher);
        let at = hasher.finish() % (LOCKS as u64);
        self.upload_locks[usize::try_from(at).unwrap_or(0)].lock().await
    }

    /// The lock of a key.
    pub(crate) async fn lock(&self, bucket: &DirRef, key: &Key) -> MutexGuard<'_, ()> {
        let mut hasher = std::hash::DefaultHasher::new();
        bucket.ino.0.hash(&mut hasher);
        for name in key.parents.iter().chain([&key.name]) {
            name.as_bytes().hash(&mut hasher);
        }
        let at = hasher.finish() % (LOCKS as u64);
        self.locks[usize::try_from(at).unwrap_or(0)].lock().await
    }
}
