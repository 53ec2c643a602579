//! Golden bytes of every record (being written).
