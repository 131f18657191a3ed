; Sleeping on a word of memory, and the clock, by the Windows API.

declare i32 @WaitOnAddress(ptr, ptr, i64, i32)
declare void @WakeByAddressAll(ptr)
declare i32 @QueryPerformanceCounter(ptr)
declare i32 @QueryPerformanceFrequency(ptr)

; Sleep while the word holds `value`; may return early.
define internal void @weft_wait(ptr %word, i32 %value) nounwind {
  %place = alloca i32
  store i32 %value, ptr %place
  %result = call i32 @WaitOnAddress(ptr %word, ptr %place, i64 4, i32 -1)
  ret void
}

; The same for at most 50 milliseconds.
define internal void @weft_wait_briefly(ptr %word, i32 %value) nounwind {
  %place = alloca i32
  store i32 %value, ptr %place
  %result = call i32 @WaitOnAddress(ptr %word, ptr %place, i64 4, i32 50)
  ret void
}

; Wake the threads that sleep on the word, be they more than `count`.
define internal void @weft_wake(ptr %word, i32 %count) nounwind {
  call void @WakeByAddressAll(ptr %word)
  ret void
}

; Nanoseconds of the performance counter.
define internal i64 @weft_clock() nounwind {
  %ticks.place = alloca i64
  %rate.place = alloca i64
  %read = call i32 @QueryPerformanceCounter(ptr %ticks.place)
  %asked = call i32 @QueryPerformanceFrequency(ptr %rate.place)
  %ticks = load i64, ptr %ticks.place
  %rate = load i64, ptr %rate.place
  %seconds = sdiv i64 %ticks, %rate
  %rest = srem i64 %ticks, %rate
  %whole = mul i64 %seconds, 1000000000
  %scaled = mul i64 %rest, 1000000000
  %part = sdiv i64 %scaled, %rate
  %sum = add i64 %whole, %part
  ret i64 %sum
}
