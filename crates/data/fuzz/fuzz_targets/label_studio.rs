#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fedanchor_data_fuzz::fuzz("label-studio", bytes));
