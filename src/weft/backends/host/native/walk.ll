; Walks along a tape: which of its steps can run, whose blocks are left, what is done.
;
; A step is a launch whose blocks threads share, or a row of launches that one thread runs in order. A thread takes
; blocks of the first step that has any left and need not wait for another; so nobody stops where a step ends, unless
; what comes next depends on it. Steps become visible when the one 32 before them is done: the ring has an entry for
; each that is visible. Each thread begins with a seat's range of a step's blocks, the same ones in every step (its
; cache remembers them), then helps with those of other seats.
;
; A word of the ring says which step it is about, by a tag that grows from step to step and from run to run. Whoever
; finds an older tag there is the first to use it for his step, so that nothing has to be prepared.

%Tape = type {
  ptr,                                                  ; 0 steps
  i64,                                                  ; 1 their count
  ptr,                                                  ; 2 launches
  ptr,                                                  ; 3 places
  i64,                                                  ; 4 most buffers of a launch
  i64,                                                  ; 5 regions
  i64                                                   ; 6 bytes into an array object where its address is, or 0
}
%Step = type {
  i64,                                                  ; 0 first launch
  i64,                                                  ; 1 launches
  i64,                                                  ; 2 blocks: of the launch that is shared, or 1
  i64,                                                  ; 3 grain: blocks that are not worth dividing
  i64,                                                  ; 4 parts that it may be divided into; 1: it is not shared
  i64                                                   ; 5 waits: bit 32 - n for the step that is n before this one
}
%Launch = type { ptr, i64, i64, i64, ptr, i64 }         ; kernel, blocks, first place, buffers, parameters, most blocks
                                                        ;   that are run in one go, so that a run can be left soon
%Place = type { i64, i64 }                              ; region, byte offset

%Seat = type { i64, [56 x i8] }                         ; tag << 32 | next block
%Entry = type { i64, [56 x i8], [64 x %Seat] }          ; tag << 32 | blocks that are done
%Run = type {
  i64,                                                  ; 0 progress: steps before all that are not done << 32 | bit n:
  [56 x i8],                                            ;   the step n after these is done
  i32,                                                  ; 2 ticks: counts up when the caller is to wake
  i32,                                                  ; 3 whether the caller sleeps
  [56 x i8],
  ptr,                                                  ; 5 tape
  ptr,                                                  ; 6 regions: the addresses that places refer to
  ptr,                                                  ; 7 times [launches][threads][2], or null
  i64,                                                  ; 8 threads
  i64,                                                  ; 9 tag of the first step
  i64,                                                  ; 10 steps
  [2 x i64],                                            ; 11 whether the caller has given up; unused
  [32 x %Entry]                                         ; 12 the ring
}

; How long a caller stays, and where it goes on with a row of launches that it has left in the middle.
%Caller = type { i64, i64, i64, i64 }                   ; the clock's time to leave, step or -1, launch, block

; Whether to leave: the caller has given up the run (at `stop`), or its own time is over. Both may be null.
define internal i1 @is_over(ptr %stop, ptr %caller) alwaysinline nounwind {
entry:
  %shared = icmp ne ptr %stop, null
  br i1 %shared, label %ask, label %mine
ask:
  %word = load atomic i64, ptr %stop monotonic, align 8
  %stopped = icmp ne i64 %word, 0
  br i1 %stopped, label %yes, label %mine
mine:
  %timed = icmp ne ptr %caller, null
  br i1 %timed, label %look, label %no
look:
  %end = load i64, ptr %caller
  %now = call i64 @weft_clock()
  %late = icmp sgt i64 %now, %end
  ret i1 %late
yes:
  ret i1 true
no:
  ret i1 false
}

; -- one step ---------------------------------------------------------------------------------------------------------

; A quarter of what is left of a seat's range, at least `grain` and at most `most`: [first, last), empty where nothing is
; left.
define internal { i64, i64 } @take(ptr %seat, i64 %tag, i64 %start, i64 %end, i64 %grain,
                                   i64 %most) alwaysinline nounwind {
entry:
  %high = shl i64 %tag, 32
  br label %again
again:
  %word = load atomic i64, ptr %seat monotonic, align 8
  %found = lshr i64 %word, 32
  %over = icmp ugt i64 %found, %tag
  br i1 %over, label %none, label %look
look:
  %same = icmp eq i64 %found, %tag
  %next = and i64 %word, 4294967295
  %first = select i1 %same, i64 %next, i64 %start
  %rest = sub i64 %end, %first
  %any = icmp sgt i64 %rest, 0
  br i1 %any, label %some, label %none
some:
  %quarter = lshr i64 %rest, 2
  %large = call i64 @llvm.smax.i64(i64 %quarter, i64 %grain)
  %bounded = call i64 @llvm.smin.i64(i64 %large, i64 %most)
  %count = call i64 @llvm.smin.i64(i64 %bounded, i64 %rest)
  %last = add i64 %first, %count
  %word.next = or i64 %high, %last
  %swap = cmpxchg ptr %seat, i64 %word, i64 %word.next monotonic monotonic
  %got = extractvalue { i64, i1 } %swap, 1
  br i1 %got, label %mine, label %again
mine:
  %begin = insertvalue { i64, i64 } undef, i64 %first, 0
  %range = insertvalue { i64, i64 } %begin, i64 %last, 1
  ret { i64, i64 } %range
none:
  ret { i64, i64 } zeroinitializer
}

define internal ptr @step_at(ptr %run, i64 %number) alwaysinline nounwind {
  %tape.from = getelementptr %Run, ptr %run, i64 0, i32 5
  %tape = load ptr, ptr %tape.from
  %steps = load ptr, ptr %tape
  %step = getelementptr %Step, ptr %steps, i64 %number
  ret ptr %step
}

define internal ptr @entry_of(ptr %run, i64 %number) alwaysinline nounwind {
  %index = and i64 %number, 31
  %entry = getelementptr %Run, ptr %run, i64 0, i32 12, i64 %index
  ret ptr %entry
}

; The seats of a step: no more than there are parts or threads.
define internal i64 @seats_of(ptr %run, ptr %step) alwaysinline nounwind {
  %parts.from = getelementptr %Step, ptr %step, i64 0, i32 4
  %parts = load i64, ptr %parts.from
  %threads.from = getelementptr %Run, ptr %run, i64 0, i32 8
  %threads = load i64, ptr %threads.from
  %seats = call i64 @llvm.smin.i64(i64 %parts, i64 %threads)
  ret i64 %seats
}

; Count blocks as done; how many are.
define internal i64 @count_done(ptr %place, i64 %tag, i64 %more) alwaysinline nounwind {
entry:
  %high = shl i64 %tag, 32
  %known = load atomic i64, ptr %place monotonic, align 8
  br label %again
again:
  %word = phi i64 [ %known, %entry ], [ %present, %again ]
  %found = lshr i64 %word, 32
  %same = icmp eq i64 %found, %tag
  %low = and i64 %word, 4294967295
  %before = select i1 %same, i64 %low, i64 0
  %total = add i64 %before, %more
  %word.next = or i64 %high, %total
  %swap = cmpxchg ptr %place, i64 %word, i64 %word.next acq_rel monotonic
  %present = extractvalue { i64, i1 } %swap, 0
  %did = extractvalue { i64, i1 } %swap, 1
  br i1 %did, label %end, label %again
end:
  ret i64 %total
}

define internal i64 @clock_if(i1 %wanted) alwaysinline nounwind {
  br i1 %wanted, label %yes, label %no
yes:
  %now = call i64 @weft_clock()
  ret i64 %now
no:
  ret i64 0
}

; Note when a thread worked on a launch; one that it left and took up again began when it first did.
define internal void @stamp(ptr %times, i64 %threads, i64 %launch, i64 %thread, i64 %start) nounwind {
  %now = call i64 @weft_clock()
  %row = mul i64 %launch, %threads
  %cell = add i64 %row, %thread
  %index = shl i64 %cell, 1
  %start.place = getelementptr i64, ptr %times, i64 %index
  %noted = load i64, ptr %start.place
  %fresh = icmp eq i64 %noted, 0
  %begun = select i1 %fresh, i64 %start, i64 %noted
  store i64 %begun, ptr %start.place
  %end.place = getelementptr i64, ptr %start.place, i64 1
  store i64 %now, ptr %end.place
  ret void
}

; Pointers for a launch's buffers: a region's address plus an offset each.
define internal void @resolve(ptr %launch, ptr %places, ptr %regions, ptr %buffers) alwaysinline nounwind {
entry:
  %first.from = getelementptr %Launch, ptr %launch, i64 0, i32 2
  %first = load i64, ptr %first.from
  %count.from = getelementptr %Launch, ptr %launch, i64 0, i32 3
  %count = load i64, ptr %count.from
  br label %visit
visit:
  %index = phi i64 [ 0, %entry ], [ %index.next, %set ]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %set, label %end
set:
  %number = add i64 %first, %index
  %place = getelementptr %Place, ptr %places, i64 %number
  %region = load i64, ptr %place
  %offset.from = getelementptr %Place, ptr %place, i64 0, i32 1
  %offset = load i64, ptr %offset.from
  %base.from = getelementptr ptr, ptr %regions, i64 %region
  %base = load ptr, ptr %base.from
  %address = getelementptr i8, ptr %base, i64 %offset
  %buffer = getelementptr ptr, ptr %buffers, i64 %index
  store ptr %address, ptr %buffer
  %index.next = add i64 %index, 1
  br label %visit
end:
  ret void
}

; Run launches `at`..begin+count-1 one after the other on the calling thread, the first from block `from` on. Whether all
; are done; where not, the run is given up, or `caller` knows where to go on.
define internal i1 @in_order(ptr %tape, i64 %begin, i64 %count, i64 %at, i64 %from, ptr %regions, ptr %buffers,
                             ptr %times, i64 %threads, i64 %thread, ptr %stop, ptr %caller) nounwind {
entry:
  %launches.from = getelementptr %Tape, ptr %tape, i64 0, i32 2
  %launches = load ptr, ptr %launches.from
  %places.from = getelementptr %Tape, ptr %tape, i64 0, i32 3
  %places = load ptr, ptr %places.from
  %timed = icmp ne ptr %times, null
  %end = add i64 %begin, %count
  br label %visit
visit:
  %number = phi i64 [ %at, %entry ], [ %number.next, %next ]
  %start.block = phi i64 [ %from, %entry ], [ 0, %next ]
  %more = icmp slt i64 %number, %end
  br i1 %more, label %launch, label %finish
launch:
  %row = getelementptr %Launch, ptr %launches, i64 %number
  call void @resolve(ptr %row, ptr %places, ptr %regions, ptr %buffers)
  %kernel = load ptr, ptr %row
  %blocks.from = getelementptr %Launch, ptr %row, i64 0, i32 1
  %blocks = load i64, ptr %blocks.from
  %parameters.from = getelementptr %Launch, ptr %row, i64 0, i32 4
  %parameters = load ptr, ptr %parameters.from
  %most.from = getelementptr %Launch, ptr %row, i64 0, i32 5
  %most = load i64, ptr %most.from
  %start = call i64 @clock_if(i1 %timed)
  br label %piece
piece:
  %first = phi i64 [ %start.block, %launch ], [ %last, %rest ]
  %left = sub i64 %blocks, %first
  %some = call i64 @llvm.smin.i64(i64 %left, i64 %most)
  %last = add i64 %first, %some
  call void %kernel(i64 %first, i64 %last, ptr %buffers, ptr %parameters)
  %part = icmp slt i64 %last, %blocks
  br i1 %part, label %ask, label %ran
ask:
  %over.inside = call i1 @is_over(ptr %stop, ptr %caller)
  br i1 %over.inside, label %pause, label %rest
rest:
  br label %piece
ran:
  br i1 %timed, label %write, label %next
write:
  call void @stamp(ptr %times, i64 %threads, i64 %number, i64 %thread, i64 %start)
  br label %next
next:
  %number.next = add i64 %number, 1
  %further = icmp slt i64 %number.next, %end
  %over = call i1 @is_over(ptr %stop, ptr %caller)
  %leave = and i1 %further, %over
  br i1 %leave, label %suspend, label %visit
pause:
  br i1 %timed, label %note, label %suspend
note:
  call void @stamp(ptr %times, i64 %threads, i64 %number, i64 %thread, i64 %start)
  br label %suspend
suspend:
  %launch.next = phi i64 [ %number.next, %next ], [ %number, %pause ], [ %number, %note ]
  %block.next = phi i64 [ 0, %next ], [ %last, %pause ], [ %last, %note ]
  %known = icmp ne ptr %caller, null
  br i1 %known, label %keep, label %left.undone
keep:
  %launch.place = getelementptr %Caller, ptr %caller, i64 0, i32 2
  store i64 %launch.next, ptr %launch.place
  %block.place = getelementptr %Caller, ptr %caller, i64 0, i32 3
  store i64 %block.next, ptr %block.place
  br label %left.undone
left.undone:
  ret i1 false
finish:
  ret i1 true
}

; Run what is left of a step's blocks, beginning at the thread's own seat; how many these were, or -1 for a row of
; launches that it took and left in the middle.
define internal i64 @work(ptr %run, i64 %number, i64 %tag, i64 %thread, ptr %buffers, ptr %caller) nounwind {
entry:
  %step = call ptr @step_at(ptr %run, i64 %number)
  %place = call ptr @entry_of(ptr %run, i64 %number)
  %tape.from = getelementptr %Run, ptr %run, i64 0, i32 5
  %tape = load ptr, ptr %tape.from
  %regions.from = getelementptr %Run, ptr %run, i64 0, i32 6
  %regions = load ptr, ptr %regions.from
  %times.from = getelementptr %Run, ptr %run, i64 0, i32 7
  %times = load ptr, ptr %times.from
  %threads.from = getelementptr %Run, ptr %run, i64 0, i32 8
  %threads = load i64, ptr %threads.from
  %first.launch = load i64, ptr %step
  %blocks.from = getelementptr %Step, ptr %step, i64 0, i32 2
  %blocks = load i64, ptr %blocks.from
  %grain.from = getelementptr %Step, ptr %step, i64 0, i32 3
  %grain = load i64, ptr %grain.from
  %seats = call i64 @seats_of(ptr %run, ptr %step)
  %parts.from = getelementptr %Step, ptr %step, i64 0, i32 4
  %parts = load i64, ptr %parts.from
  %stop = getelementptr %Run, ptr %run, i64 0, i32 11
  %shared = icmp sgt i64 %parts, 1
  br i1 %shared, label %share, label %alone

alone:
  %all.place = getelementptr %Entry, ptr %place, i64 0, i32 2, i64 0
  %all = call { i64, i64 } @take(ptr %all.place, i64 %tag, i64 0, i64 1, i64 1, i64 1)
  %all.last = extractvalue { i64, i64 } %all, 1
  %mine = icmp sgt i64 %all.last, 0
  br i1 %mine, label %row, label %nothing
row:
  %launches.from = getelementptr %Step, ptr %step, i64 0, i32 1
  %launches = load i64, ptr %launches.from
  %all.done = call i1 @in_order(ptr %tape, i64 %first.launch, i64 %launches, i64 %first.launch, i64 0, ptr %regions,
                                ptr %buffers, ptr %times, i64 %threads, i64 %thread, ptr %stop, ptr %caller)
  %row.ran = select i1 %all.done, i64 1, i64 -1
  ret i64 %row.ran
nothing:
  ret i64 0

share:
  %rows.from = getelementptr %Tape, ptr %tape, i64 0, i32 2
  %rows = load ptr, ptr %rows.from
  %launch = getelementptr %Launch, ptr %rows, i64 %first.launch
  %kernel = load ptr, ptr %launch
  %parameters.from = getelementptr %Launch, ptr %launch, i64 0, i32 4
  %parameters = load ptr, ptr %parameters.from
  %most.from = getelementptr %Launch, ptr %launch, i64 0, i32 5
  %most = load i64, ptr %most.from
  %places.from = getelementptr %Tape, ptr %tape, i64 0, i32 3
  %places = load ptr, ptr %places.from
  %timed = icmp ne ptr %times, null
  br label %visit
visit:
  %visited = phi i64 [ 0, %share ], [ %visited.next, %leave ]
  %start.before = phi i64 [ 0, %share ], [ %start, %leave ]
  %done.before = phi i64 [ 0, %share ], [ %done, %leave ]
  %beside = add i64 %thread, %visited
  %index = urem i64 %beside, %seats
  %seat = getelementptr %Entry, ptr %place, i64 0, i32 2, i64 %index
  %index.next = add i64 %index, 1
  %product = mul i64 %blocks, %index
  %begin = udiv i64 %product, %seats
  %product.next = mul i64 %blocks, %index.next
  %end = udiv i64 %product.next, %seats
  br label %again
again:
  %start = phi i64 [ %start.before, %visit ], [ %start.now, %go.on ]
  %done = phi i64 [ %done.before, %visit ], [ %done.next, %go.on ]
  %range = call { i64, i64 } @take(ptr %seat, i64 %tag, i64 %begin, i64 %end, i64 %grain, i64 %most)
  %first = extractvalue { i64, i64 } %range, 0
  %last = extractvalue { i64, i64 } %range, 1
  %any = icmp slt i64 %first, %last
  br i1 %any, label %taken, label %leave
taken:
  %begins = icmp eq i64 %done, 0
  br i1 %begins, label %prepare, label %blocks.run
prepare:
  call void @resolve(ptr %launch, ptr %places, ptr %regions, ptr %buffers)
  %clock = call i64 @clock_if(i1 %timed)
  br label %blocks.run
blocks.run:
  %start.now = phi i64 [ %start, %taken ], [ %clock, %prepare ]
  call void %kernel(i64 %first, i64 %last, ptr %buffers, ptr %parameters)
  %count = sub i64 %last, %first
  %done.next = add i64 %done, %count
  %over = call i1 @is_over(ptr %stop, ptr %caller)
  br i1 %over, label %finish, label %go.on
go.on:
  br label %again
leave:
  %visited.next = add i64 %visited, 1
  %more = icmp slt i64 %visited.next, %seats
  br i1 %more, label %visit, label %finish
finish:
  %done.all = phi i64 [ %done, %leave ], [ %done.next, %blocks.run ]
  %start.first = phi i64 [ %start, %leave ], [ %start.now, %blocks.run ]
  %did = icmp sgt i64 %done.all, 0
  %record = and i1 %timed, %did
  br i1 %record, label %write, label %return
write:
  call void @stamp(ptr %times, i64 %threads, i64 %first.launch, i64 %thread, i64 %start.first)
  br label %return
return:
  ret i64 %done.all
}

; -- all steps --------------------------------------------------------------------------------------------------------

; A step is done, and all are to see it. The progress that is now.
define internal i64 @finish_step(ptr %run, i64 %number) nounwind {
entry:
  %known = load atomic i64, ptr %run monotonic, align 8
  br label %again
again:
  %progress = phi i64 [ %known, %entry ], [ %present, %again ]
  %first = lshr i64 %progress, 32
  %mask = and i64 %progress, 4294967295
  %index = sub i64 %number, %first
  %bit = shl i64 1, %index
  %more = or i64 %mask, %bit
  %open.bits = xor i64 %more, -1
  %passed = call i64 @llvm.cttz.i64(i64 %open.bits, i1 false)
  %first.next = add i64 %first, %passed
  %mask.next = lshr i64 %more, %passed
  %high = shl i64 %first.next, 32
  %progress.next = or i64 %high, %mask.next
  %swap = cmpxchg ptr %run, i64 %progress, i64 %progress.next seq_cst monotonic
  %present = extractvalue { i64, i1 } %swap, 0
  %did = extractvalue { i64, i1 } %swap, 1
  br i1 %did, label %tell, label %again
tell:
  %sleeps.place = getelementptr %Run, ptr %run, i64 0, i32 3
  %sleeps = load atomic i32, ptr %sleeps.place seq_cst, align 4
  %asleep = icmp ne i32 %sleeps, 0
  br i1 %asleep, label %rouse, label %end
rouse:
  %ticks.place = getelementptr %Run, ptr %run, i64 0, i32 2
  %ticks = atomicrmw add ptr %ticks.place, i32 1 seq_cst
  call void @weft_wake(ptr %ticks.place, i32 1)
  br label %end
end:
  ret i64 %progress.next
}

; Wait for progress beyond what was seen, as a caller, which must not leave: awake for a while, then asleep. May return
; early, so that a caller whose time is over can leave.
define internal void @wait_for_progress(ptr %run, i64 %seen, i64 %pauses) nounwind {
entry:
  %sleeps.place = getelementptr %Run, ptr %run, i64 0, i32 3
  %ticks.place = getelementptr %Run, ptr %run, i64 0, i32 2
  %early = call i1 @pause_for_progress(ptr %run, i64 %seen, i64 %pauses)
  br i1 %early, label %end, label %mark
mark:
  store atomic i32 1, ptr %sleeps.place seq_cst, align 4
  %ticks = load atomic i32, ptr %ticks.place seq_cst, align 4
  %still = load atomic i64, ptr %run seq_cst, align 8
  %same = icmp eq i64 %still, %seen
  br i1 %same, label %park, label %awake
park:
  call void @weft_wait_briefly(ptr %ticks.place, i32 %ticks)
  br label %awake
awake:
  store atomic i32 0, ptr %sleeps.place seq_cst, align 4
  br label %end
end:
  ret void
}

; Pause at most so many times for progress beyond what was seen; whether there was any.
define internal i1 @pause_for_progress(ptr %run, i64 %seen, i64 %pauses) nounwind {
entry:
  br label %pause
pause:
  %n = phi i64 [ 0, %entry ], [ %n.next, %again ]
  call void @weft_pause()
  %now = load atomic i64, ptr %run monotonic, align 8
  %news = icmp ne i64 %now, %seen
  br i1 %news, label %yes, label %again
again:
  %n.next = add i64 %n, 1
  %patient = icmp slt i64 %n.next, %pauses
  br i1 %patient, label %pause, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; Work on a run's steps: the caller (thread 0) until all are done or its time is over, a worker as long as there is
; something to do. Returns whether there was anything. `slot` is where the run is published, `pauses` how long to stay
; awake, `caller` null for workers and for a caller with any amount of time.
define internal i1 @walk(ptr %pool, ptr %slot, ptr %run, i64 %number, i64 %pauses, ptr %caller) nounwind {
entry:
  %tape.from = getelementptr %Run, ptr %run, i64 0, i32 5
  %tape = load ptr, ptr %tape.from
  %steps = load ptr, ptr %tape
  %count.from = getelementptr %Tape, ptr %tape, i64 0, i32 1
  %count = load i64, ptr %count.from
  %most.from = getelementptr %Tape, ptr %tape, i64 0, i32 4
  %most = load i64, ptr %most.from
  %buffers = alloca ptr, i64 %most, align 64
  %threads.from = getelementptr %Run, ptr %run, i64 0, i32 8
  %threads = load i64, ptr %threads.from
  %thread = urem i64 %number, %threads
  %tag.from = getelementptr %Run, ptr %run, i64 0, i32 9
  %tag.first = load i64, ptr %tag.from
  %is.caller = icmp eq i64 %number, 0
  %stop = getelementptr %Run, ptr %run, i64 0, i32 11
  %limited = icmp ne ptr %caller, null
  br i1 %limited, label %resume, label %look

resume:                                                 ; a row that this caller has left in the middle
  %row.from = getelementptr %Caller, ptr %caller, i64 0, i32 1
  %row = load i64, ptr %row.from
  %any.row = icmp sge i64 %row, 0
  br i1 %any.row, label %row.on, label %look
row.on:
  %row.step = getelementptr %Step, ptr %steps, i64 %row
  %row.first = load i64, ptr %row.step
  %row.count.from = getelementptr %Step, ptr %row.step, i64 0, i32 1
  %row.count = load i64, ptr %row.count.from
  %row.launch.from = getelementptr %Caller, ptr %caller, i64 0, i32 2
  %row.launch = load i64, ptr %row.launch.from
  %row.block.from = getelementptr %Caller, ptr %caller, i64 0, i32 3
  %row.block = load i64, ptr %row.block.from
  %regions.from = getelementptr %Run, ptr %run, i64 0, i32 6
  %regions = load ptr, ptr %regions.from
  %times.from = getelementptr %Run, ptr %run, i64 0, i32 7
  %times = load ptr, ptr %times.from
  %row.done = call i1 @in_order(ptr %tape, i64 %row.first, i64 %row.count, i64 %row.launch, i64 %row.block,
                                ptr %regions, ptr %buffers, ptr %times, i64 %threads, i64 %thread, ptr %stop,
                                ptr %caller)
  br i1 %row.done, label %row.end, label %end.did
row.end:
  store i64 -1, ptr %row.from
  %row.progress = call i64 @finish_step(ptr %run, i64 %row)
  call void @call_absent(ptr %pool, ptr %slot, ptr %run, i64 %row.progress, i64 %count)
  br label %look

look:                                                   ; spent: bit n for a step that has no blocks left
  %did = phi i1 [ false, %entry ], [ false, %resume ], [ true, %row.end ], [ true, %worked ], [ %did, %wait ],
                [ %did, %patience ]
  %spent.before = phi i64 [ 0, %entry ], [ 0, %resume ], [ 0, %row.end ], [ %spent.more, %worked ],
                          [ %spent.same, %wait ], [ %spent.same, %patience ]
  %base = phi i64 [ 0, %entry ], [ 0, %resume ], [ 0, %row.end ], [ %first, %worked ], [ %first, %wait ],
                  [ %first, %patience ]
  %progress = load atomic i64, ptr %run acquire, align 8
  %first = lshr i64 %progress, 32
  %finished = icmp sge i64 %first, %count
  br i1 %finished, label %end, label %stay
stay:
  %over = call i1 @is_over(ptr %stop, ptr %caller)
  br i1 %over, label %end, label %work.on
work.on:
  br i1 %is.caller, label %search, label %serve
serve:
  %dismissed = call i1 @is_stopped(ptr %pool)
  br i1 %dismissed, label %end, label %search
search:
  %moved = sub i64 %first, %base
  %far = icmp ugt i64 %moved, 31
  %shift = select i1 %far, i64 32, i64 %moved
  %spent = lshr i64 %spent.before, %shift
  %done.bits = and i64 %progress, 4294967295
  %left = sub i64 %count, %first
  %window = call i64 @llvm.smin.i64(i64 %left, i64 32)
  %beyond = shl i64 -1, %window
  %taken.bits = or i64 %done.bits, %spent
  %excluded = or i64 %taken.bits, %beyond
  %candidates.all = xor i64 %excluded, -1
  br label %next
next:
  %candidates = phi i64 [ %candidates.all, %search ], [ %candidates.rest, %check ], [ %candidates.rest, %empty ]
  %spent.same = phi i64 [ %spent, %search ], [ %spent.same, %check ], [ %spent.mark, %empty ]
  %none = icmp eq i64 %candidates, 0
  br i1 %none, label %idle, label %check
check:
  %index = call i64 @llvm.cttz.i64(i64 %candidates, i1 true)
  %less = sub i64 %candidates, 1
  %candidates.rest = and i64 %candidates, %less
  %current = add i64 %first, %index
  %step = getelementptr %Step, ptr %steps, i64 %current
  %waits.from = getelementptr %Step, ptr %step, i64 0, i32 5
  %waits = load i64, ptr %waits.from
  %below = shl i64 -1, %index
  %earlier = or i64 %done.bits, %below
  %undone = xor i64 %earlier, -1                        ; steps first..current-1 that are not done
  %place = sub i64 32, %index
  %undone.bits = shl i64 %undone, %place
  %blocking = and i64 %undone.bits, %waits
  %free = icmp eq i64 %blocking, 0
  br i1 %free, label %try, label %next
try:
  %tag = add i64 %tag.first, %current
  %ran = call i64 @work(ptr %run, i64 %current, i64 %tag, i64 %thread, ptr %buffers, ptr %caller)
  %row.left = icmp slt i64 %ran, 0
  br i1 %row.left, label %remember, label %count.it
remember:
  br i1 %limited, label %note, label %end.did
note:
  %row.place = getelementptr %Caller, ptr %caller, i64 0, i32 1
  store i64 %current, ptr %row.place
  br label %end.did
count.it:
  %here = shl i64 1, %index
  %spent.mark = or i64 %spent.same, %here
  %some = icmp sgt i64 %ran, 0
  br i1 %some, label %all.or.part, label %empty
empty:
  br label %next
all.or.part:
  %spent.more = or i64 %spent.same, %here
  %blocks.from = getelementptr %Step, ptr %step, i64 0, i32 2
  %blocks = load i64, ptr %blocks.from
  %whole = icmp eq i64 %ran, %blocks
  br i1 %whole, label %finish, label %part
part:
  %entry.place = call ptr @entry_of(ptr %run, i64 %current)
  %total = call i64 @count_done(ptr %entry.place, i64 %tag, i64 %ran)
  %complete = icmp eq i64 %total, %blocks
  br i1 %complete, label %finish, label %worked
finish:
  %progress.now = call i64 @finish_step(ptr %run, i64 %current)
  call void @call_absent(ptr %pool, ptr %slot, ptr %run, i64 %progress.now, i64 %count)
  br label %worked
worked:
  br label %look

idle:
  br i1 %is.caller, label %wait, label %patience
wait:
  call void @wait_for_progress(ptr %run, i64 %progress, i64 %pauses)
  br label %look
patience:
  %news = call i1 @pause_for_progress(ptr %run, i64 %progress, i64 %pauses)
  br i1 %news, label %look, label %end
end:
  ret i1 %did
end.did:
  ret i1 true
}

; Wake workers that left a run, where there is a step for them to share.
define internal void @call_absent(ptr %pool, ptr %slot, ptr %run, i64 %progress, i64 %count) nounwind {
entry:
  %state = load atomic i32, ptr %slot monotonic, align 4
  %inside = and i32 %state, 65535
  %shifted = lshr i32 %state, 16
  %wanted = and i32 %shifted, 4095
  %absent = icmp ult i32 %inside, %wanted
  br i1 %absent, label %look, label %end
look:
  %first = lshr i64 %progress, 32
  %exists = icmp slt i64 %first, %count
  br i1 %exists, label %check, label %end
check:
  %step = call ptr @step_at(ptr %run, i64 %first)
  %seats = call i64 @seats_of(ptr %run, ptr %step)
  %shared = icmp sgt i64 %seats, 1
  br i1 %shared, label %tell, label %end
tell:
  call void @announce(ptr %pool)
  br label %end
end:
  ret void
}
