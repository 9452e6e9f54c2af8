// Failures as messages.

#pragma once

#include <c10/util/Exception.h>

#include <cstdio>

namespace {

// Why this thread's last call failed. A fixed buffer, because reporting a failure must not fail in turn.
thread_local char message[4096];

// Null, or the message of a failure, which the thread's next call overwrites.
template <class F> const char* guarded(F body) {
  auto failed = [](const char* text) -> const char* {
    snprintf(message, sizeof message, "%s", text);
    return message;
  };
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    return failed(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return failed(error.what());
  } catch (...) {
    return failed("an unknown failure");
  }
}

}  // namespace
