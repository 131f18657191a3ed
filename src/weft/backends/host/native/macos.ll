; Sleeping on a word of memory, and the clock, by what macOS' system library offers.

declare i32 @__ulock_wait(i32, ptr, i64, i32)
declare i32 @__ulock_wake(i32, ptr, i64)
declare i64 @clock_gettime_nsec_np(i32)

; Sleep while the word holds `value`; may return early.
define internal void @weft_wait(ptr %word, i32 %value) nounwind {
  %wide = zext i32 %value to i64
  %result = call i32 @__ulock_wait(i32 1, ptr %word, i64 %wide, i32 0)
  ret void
}

; The same for at most 50 milliseconds.
define internal void @weft_wait_briefly(ptr %word, i32 %value) nounwind {
  %wide = zext i32 %value to i64
  %result = call i32 @__ulock_wait(i32 1, ptr %word, i64 %wide, i32 50000)
  ret void
}

; Wake the threads that sleep on the word, be they more than `count`.
define internal void @weft_wake(ptr %word, i32 %count) nounwind {
  %result = call i32 @__ulock_wake(i32 257, ptr %word, i64 0)
  ret void
}

; Nanoseconds of the monotonic clock.
define internal i64 @weft_clock() nounwind {
  %now = call i64 @clock_gettime_nsec_np(i32 8)
  ret i64 %now
}
