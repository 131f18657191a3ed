; Compute the numbers of a plan. An operation is three words: what to do, and the slots of its operands; its result goes
; to the next slot. A result that does not fit into 64 bits, or of a division by zero, is the smallest integer, and so is
; everything that is computed from it. A check is four words: how two slots compare, these, and a slot whose 0 lifts it.

; Compute all operations; whether all checks hold.
define i32 @weft_compute(ptr %operations, i64 %count, ptr %values, ptr %results, ptr %checks, i64 %check.count) nounwind {
entry:
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %visit, label %end
visit:
  %number = phi i64 [ 0, %entry ], [ %number.next, %store ]
  %row = mul i64 %number, 3
  %operation.at = getelementptr i32, ptr %operations, i64 %row
  %operation = load i32, ptr %operation.at, align 4
  %left.at = getelementptr i32, ptr %operation.at, i64 1
  %left = call i64 @slot_at(ptr %left.at, ptr %values)
  %right.at = getelementptr i32, ptr %operation.at, i64 2
  %right = call i64 @slot_at(ptr %right.at, ptr %values)
  %left.wrong = icmp eq i64 %left, -9223372036854775808
  %right.wrong = icmp eq i64 %right, -9223372036854775808
  %wrong = or i1 %left.wrong, %right.wrong
  br i1 %wrong, label %store, label %choose
choose:
  switch i32 %operation, label %store [
    i32 0, label %add
    i32 1, label %multiply
    i32 2, label %divide
    i32 3, label %divide
    i32 4, label %minimum
    i32 5, label %maximum
  ]
add:
  %sum.pair = call { i64, i1 } @llvm.sadd.with.overflow.i64(i64 %left, i64 %right)
  %sum.value = extractvalue { i64, i1 } %sum.pair, 0
  %sum.over = extractvalue { i64, i1 } %sum.pair, 1
  %sum = select i1 %sum.over, i64 -9223372036854775808, i64 %sum.value
  br label %store
multiply:
  %product.pair = call { i64, i1 } @llvm.smul.with.overflow.i64(i64 %left, i64 %right)
  %product.value = extractvalue { i64, i1 } %product.pair, 0
  %product.over = extractvalue { i64, i1 } %product.pair, 1
  %product = select i1 %product.over, i64 -9223372036854775808, i64 %product.value
  br label %store
divide:
  %by.zero = icmp eq i64 %right, 0
  br i1 %by.zero, label %store, label %quotient
quotient:
  %truncated = sdiv i64 %left, %right
  %rest = srem i64 %left, %right
  %signs = xor i64 %rest, %right
  %opposite = icmp slt i64 %signs, 0
  %uneven = icmp ne i64 %rest, 0
  %lower = and i1 %opposite, %uneven
  %less = sext i1 %lower to i64
  %floor = add i64 %truncated, %less
  %more = select i1 %lower, i64 %right, i64 0
  %remainder = add i64 %rest, %more
  %is.quotient = icmp eq i32 %operation, 2
  %divided = select i1 %is.quotient, i64 %floor, i64 %remainder
  br label %store
minimum:
  %smaller = call i64 @llvm.smin.i64(i64 %left, i64 %right)
  br label %store
maximum:
  %larger = call i64 @llvm.smax.i64(i64 %left, i64 %right)
  br label %store
store:
  %result = phi i64 [ -9223372036854775808, %visit ], [ -9223372036854775808, %choose ], [ %sum, %add ],
                    [ %product, %multiply ], [ -9223372036854775808, %divide ], [ %divided, %quotient ],
                    [ %smaller, %minimum ], [ %larger, %maximum ]
  %place = getelementptr i64, ptr %results, i64 %number
  store i64 %result, ptr %place, align 8
  %number.next = add i64 %number, 1
  %again = icmp slt i64 %number.next, %count
  br i1 %again, label %visit, label %end

end:
  br label %check.visit
check.visit:
  %check = phi i64 [ 0, %end ], [ %check.next, %check.passed ]
  %check.more = icmp slt i64 %check, %check.count
  br i1 %check.more, label %check.look, label %pass
check.look:
  %check.row = mul i64 %check, 4
  %relation.at = getelementptr i32, ptr %checks, i64 %check.row
  %relation = load i32, ptr %relation.at, align 4
  %unless.at = getelementptr i32, ptr %relation.at, i64 3
  %unless = call i64 @slot_at(ptr %unless.at, ptr %values)
  %lifted = icmp eq i64 %unless, 0
  br i1 %lifted, label %check.passed, label %compare
compare:
  %one.at = getelementptr i32, ptr %relation.at, i64 1
  %one = call i64 @slot_at(ptr %one.at, ptr %values)
  %other.at = getelementptr i32, ptr %relation.at, i64 2
  %other = call i64 @slot_at(ptr %other.at, ptr %values)
  %one.valid = icmp ne i64 %one, -9223372036854775808
  %other.valid = icmp ne i64 %other, -9223372036854775808
  %both.valid = and i1 %one.valid, %other.valid
  %at.least = icmp sge i64 %one, %other
  %equal = icmp eq i64 %one, %other
  %different = xor i1 %equal, true
  %is.at.least = icmp eq i32 %relation, 0
  %is.equal = icmp eq i32 %relation, 1
  %is.different = icmp eq i32 %relation, 2
  %holds.2 = select i1 %is.different, i1 %different, i1 true
  %holds.1 = select i1 %is.equal, i1 %equal, i1 %holds.2
  %holds.0 = select i1 %is.at.least, i1 %at.least, i1 %holds.1
  %holds = and i1 %both.valid, %holds.0
  br i1 %holds, label %check.passed, label %fail
check.passed:
  %check.next = add i64 %check, 1
  br label %check.visit
pass:
  ret i32 1
fail:
  ret i32 0
}

; The number in the slot that a word names.
define internal i64 @slot_at(ptr %word.at, ptr %values) alwaysinline nounwind {
  %slot = load i32, ptr %word.at, align 4
  %index = zext i32 %slot to i64
  %from = getelementptr i64, ptr %values, i64 %index
  %number = load i64, ptr %from, align 8
  ret i64 %number
}
