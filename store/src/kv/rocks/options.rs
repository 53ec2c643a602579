//! Settings of RocksDB for metadata: many small values, most look-ups of absent keys (every create
//! checks for its name), little memory, quick starts.
//!
//! What was measured for each choice is in `docs/decisions/0004-engine.md`.

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, LogLevel,
    Options,
    statistics::{StatsLevel, Ticker},
};

use crate::kv::BlockReads;

/// Memory that the engine takes, and settings for measurements; the rest of its set-up has no
/// choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RocksConfig {
    /// Cached blocks, indexes and filters, in bytes.
    pub block_cache_bytes: usize,
    /// About how large one memtable becomes, in bytes; there may be three.
    pub memtable_bytes: usize,
    /// New tables get filters. Without them, look-ups of names that are not there read blocks: to
    /// show what filters save.
    pub filters: bool,
    /// Blocks that are read are counted, which costs every read a little.
    pub counts_reads: bool,
}

impl RocksConfig {
    /// Size of the log at which a table is begun; the memtable then has about twice as many bytes.
    pub(super) fn log_bytes_max(&self) -> u64 {
        self.memtable_bytes as u64 / 2
    }
}

impl Default for RocksConfig {
    fn default() -> Self {
        Self {
            block_cache_bytes: 64 << 20,
            memtable_bytes: 32 << 20,
            filters: true,
            counts_reads: false,
        }
    }
}

/// Size of RocksDB's write buffer, in units of the size at which we begin a table: RocksDB itself
/// begins none.
const UNREACHED: usize = 8;

pub(super) fn database(config: &RocksConfig) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&tables(config));
    writing(&mut options, config);
    compaction(&mut options);
    starting(&mut options);
    if config.counts_reads {
        options.enable_statistics();
        options.set_statistics_level(StatsLevel::ExceptHistogramOrTimers);
    }
    options
}

/// Blocks that were read by the database with these options.
pub(super) fn block_reads(options: &Options) -> BlockReads {
    BlockReads {
        data: options.get_ticker_count(Ticker::BlockCacheDataMiss),
        index: options.get_ticker_count(Ticker::BlockCacheIndexMiss),
        filter: options.get_ticker_count(Ticker::BlockCacheFilterMiss),
    }
}

fn tables(config: &RocksConfig) -> BlockBasedOptions {
    let mut tables = BlockBasedOptions::default();
    // Without locks, so cores do not wait for each other; it sizes its entries itself.
    tables.set_block_cache(&Cache::new_hyper_clock_cache(config.block_cache_bytes, 0));
    // Most reads are of one record, and each reads and unpacks a whole block.
    tables.set_block_size(4 << 10);
    tables.set_format_version(6);
    // A name that is not there costs no read, but for one in a hundred.
    if config.filters {
        tables.set_bloom_filter(10.0, false);
        tables.set_optimize_filters_for_memory(true);
        tables.set_partition_filters(true);
    }
    // Indexes and filters live in the cache, in parts, so memory does not grow with the store.
    tables.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    tables.set_cache_index_and_filter_blocks(true);
    tables.set_cache_index_and_filter_blocks_with_high_priority(true);
    tables.set_pin_top_level_index_and_filter(true);
    tables.set_pin_l0_filter_and_index_blocks_in_cache(true);
    tables
}

fn writing(options: &mut Options, config: &RocksConfig) {
    // More than there ever is: the engine begins tables, and RocksDB none by itself.
    options.set_write_buffer_size(config.memtable_bytes * UNREACHED);
    options.set_max_write_buffer_number(3);
    options.set_memtable_prefix_bloom_ratio(0.05 / UNREACHED as f64);
    options.set_memtable_whole_key_filtering(true);
    // The log is in the kernel when a write returns, and its torn end is cut off when it is opened.
    options.set_manual_wal_flush(false);
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    // A follower of the log (`log`) reads records in the order of their numbers, each in a file that
    // only grows.
    options.set_recycle_log_file_num(0);
    options.set_wal_compression_type(DBCompressionType::None);
    options.set_enable_pipelined_write(false);
    options.set_unordered_write(false);
}

fn compaction(options: &mut Options) {
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_target_file_size_base(64 << 20);
    options.set_max_background_jobs(2);
    // Tables reach the disk as they are written, and not all at once under someone's sync.
    options.set_bytes_per_sync(1 << 20);
    // Stored answers and removed directories leave runs of deletions, slow to scan across.
    options.add_compact_on_deletion_collector_factory(4096, 2048, 0.5);
}

fn starting(options: &mut Options) {
    // With a bound, opening the database opens a few tables and not all. (It also reads the counts
    // of twenty; to skip that would be a little faster, and tell a number of keys that is far off.)
    options.set_max_open_files(1024);
    options.set_stats_dump_period_sec(0);
    options.set_log_level(LogLevel::Warn);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
}
