; Sleeping on a word of memory, and the clock, by Linux's system calls.

%Time = type { i64, i64 }                               ; seconds, nanoseconds

declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)

; Sleep while the word holds `value`; may return early.
define internal void @weft_wait(ptr %word, i32 %value) nounwind {
  %number = load i64, ptr @futex_number
  %wide = zext i32 %value to i64
  %result = call i64 (i64, ...) @syscall(i64 %number, ptr %word, i64 128, i64 %wide, ptr null, ptr null, i64 0)
  ret void
}

; The same for at most 50 milliseconds.
define internal void @weft_wait_briefly(ptr %word, i32 %value) nounwind {
  %number = load i64, ptr @futex_number
  %wide = zext i32 %value to i64
  %time = alloca %Time
  store i64 0, ptr %time
  %rest.place = getelementptr %Time, ptr %time, i64 0, i32 1
  store i64 50000000, ptr %rest.place
  %result = call i64 (i64, ...) @syscall(i64 %number, ptr %word, i64 128, i64 %wide, ptr %time, ptr null, i64 0)
  ret void
}

; Wake at most `count` threads that sleep on the word.
define internal void @weft_wake(ptr %word, i32 %count) nounwind {
  %number = load i64, ptr @futex_number
  %wide = zext i32 %count to i64
  %result = call i64 (i64, ...) @syscall(i64 %number, ptr %word, i64 129, i64 %wide, ptr null, ptr null, i64 0)
  ret void
}

; Nanoseconds of the monotonic clock.
define internal i64 @weft_clock() nounwind {
  %time = alloca %Time
  %status = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %rest.place = getelementptr %Time, ptr %time, i64 0, i32 1
  %rest = load i64, ptr %rest.place
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}
