; Compute the numbers of a plan. An operation is three words: what to do, and the slots of its operands; its result goes
; to the next slot. A result that does not fit into 64 bits, or of a division by zero, is the smallest integer, and so is
; everything that is computed from it.

define void @weft_compute(ptr %operations, i64 %count, ptr %values, ptr %results) nounwind {
entry:
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %visit, label %end
visit:
  %number = phi i64 [ 0, %entry ], [ %number.next, %store ]
  %row = mul i64 %number, 3
  %operation.at = getelementptr i32, ptr %operations, i64 %row
  %operation = load i32, ptr %operation.at, align 4
  %left.at = getelementptr i32, ptr %operation.at, i64 1
  %left.slot = load i32, ptr %left.at, align 4
  %left.index = zext i32 %left.slot to i64
  %left.from = getelementptr i64, ptr %values, i64 %left.index
  %left = load i64, ptr %left.from, align 8
  %right.at = getelementptr i32, ptr %operation.at, i64 2
  %right.slot = load i32, ptr %right.at, align 4
  %right.index = zext i32 %right.slot to i64
  %right.from = getelementptr i64, ptr %values, i64 %right.index
  %right = load i64, ptr %right.from, align 8
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
  ret void
}
