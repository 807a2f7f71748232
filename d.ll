; ModuleID = 'draw'
source_filename = "<string>"
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-unknown-linux-gnu"

@.const.draw = internal constant [5 x i8] c"draw\00"
@_ZN08NumbaEnv3rqm7kernels3cpu4drawB2v1B56c8tJTIeFIjxB2IKSgI4CrvSCKg1MMbCQQPKkLTj8gMFYBFOOlH7AIpoAE5ArrayIfLi1E1C7mutable7alignedE5ArrayIyLi1E1C7mutable7alignedE5ArrayIhLi1E1C7mutable7alignedE164Law_28array_28uint64_2c_201d_2c_20C_29_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20float64_2c_20float64_2c_20float64_29yy = common local_unnamed_addr global ptr null
@".const.missing Environment: _ZN08NumbaEnv3rqm7kernels3cpu4drawB2v1B56c8tJTIeFIjxB2IKSgI4CrvSCKg1MMbCQQPKkLTj8gMFYBFOOlH7AIpoAE5ArrayIfLi1E1C7mutable7alignedE5ArrayIyLi1E1C7mutable7alignedE5ArrayIhLi1E1C7mutable7alignedE164Law_28array_28uint64_2c_201d_2c_20C_29_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20float64_2c_20float64_2c_20float64_29yy" = internal constant [382 x i8] c"missing Environment: _ZN08NumbaEnv3rqm7kernels3cpu4drawB2v1B56c8tJTIeFIjxB2IKSgI4CrvSCKg1MMbCQQPKkLTj8gMFYBFOOlH7AIpoAE5ArrayIfLi1E1C7mutable7alignedE5ArrayIyLi1E1C7mutable7alignedE5ArrayIhLi1E1C7mutable7alignedE164Law_28array_28uint64_2c_201d_2c_20C_29_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20float64_2c_20float64_2c_20float64_29yy\00"
@PyExc_TypeError = external global i8
@".const.can't unbox array from PyObject into native value.  The object maybe of a different type" = internal constant [89 x i8] c"can't unbox array from PyObject into native value.  The object maybe of a different type\00"
@PyExc_ValueError = external global i8
@".const.size mismatch for tuple, expected 11 element(s) but got %zd" = internal constant [60 x i8] c"size mismatch for tuple, expected 11 element(s) but got %zd\00"
@".const.unknown error when calling native function" = internal constant [43 x i8] c"unknown error when calling native function\00"
@PyExc_RuntimeError = external global i8
@PyExc_StopIteration = external global i8
@PyExc_SystemError = external global i8
@".const.unknown error when calling native function.2" = internal constant [43 x i8] c"unknown error when calling native function\00"
@".const.<numba.core.cpu.CPUContext>" = internal constant [28 x i8] c"<numba.core.cpu.CPUContext>\00"
@_ZN08NumbaEnv5numba7cpython7numbers11scalar_view12_3clocals_3e4implB2v4B54c8tJTIeFIjxB2IKSgI4CrvQCk0Z4yRYcWsBAw4hWqFpgsIBZmgA_3dEd17class_28uint64_29 = common local_unnamed_addr global ptr null

define noundef range(i32 -1, -2) i32 @_ZN3rqm7kernels3cpu4drawB2v1B56c8tJTIeFIjxB2IKSgI4CrvSCKg1MMbCQQPKkLTj8gMFYBFOOlH7AIpoAE5ArrayIfLi1E1C7mutable7alignedE5ArrayIyLi1E1C7mutable7alignedE5ArrayIhLi1E1C7mutable7alignedE164Law_28array_28uint64_2c_201d_2c_20C_29_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20float64_2c_20float64_2c_20float64_29yy(ptr noalias writeonly captures(none) %retptr, ptr noalias readnone captures(none) %excinfo, ptr %arg.x.0, ptr readnone captures(none) %arg.x.1, i64 %arg.x.2, i64 %arg.x.3, ptr readonly captures(none) %arg.x.4, i64 %arg.x.5.0, i64 %arg.x.6.0, ptr %arg.words.0, ptr readnone captures(none) %arg.words.1, i64 %arg.words.2, i64 %arg.words.3, ptr readonly captures(none) %arg.words.4, i64 %arg.words.5.0, i64 %arg.words.6.0, ptr %arg.out.0, ptr readnone captures(none) %arg.out.1, i64 %arg.out.2, i64 %arg.out.3, ptr captures(none) %arg.out.4, i64 %arg.out.5.0, i64 %arg.out.6.0, ptr %arg.law.0.0, ptr readnone captures(none) %arg.law.0.1, i64 %arg.law.0.2, i64 %arg.law.0.3, ptr readonly captures(none) %arg.law.0.4, i64 %arg.law.0.5.0, i64 %arg.law.0.6.0, i64 %arg.law.1, i64 %arg.law.2, i64 %arg.law.3, i64 %arg.law.4, i64 %arg.law.5, i64 %arg.law.6, i64 %arg.law.7, double %arg.law.8, double %arg.law.9, double %arg.law.10, i64 %arg.keep, i64 %arg.plane) local_unnamed_addr {
B0:
  tail call void @NRT_incref(ptr %arg.x.0)
  tail call void @NRT_incref(ptr %arg.words.0)
  tail call void @NRT_incref(ptr %arg.out.0)
  tail call void @NRT_incref(ptr %arg.law.0.0)
  %.143 = icmp eq i64 %arg.law.5, 0
  br i1 %.143, label %B102.endif, label %B1745

B1743:                                            ; preds = %B892.endif, %middle.block134, %vec.epilog.middle.block183, %B102.endif
  %bad.3.0.lcssa = phi i64 [ 0, %B102.endif ], [ %357, %vec.epilog.middle.block183 ], [ %310, %middle.block134 ], [ %.344, %B892.endif ]
  tail call void @NRT_decref(ptr %arg.x.0)
  tail call void @NRT_decref(ptr %arg.words.0)
  tail call void @NRT_decref(ptr %arg.out.0)
  tail call void @NRT_decref(ptr %arg.law.0.0)
  br label %common.ret

B1745:                                            ; preds = %B0
  tail call void @NRT_decref(ptr %arg.law.0.0)
  %.714 = shl i64 %arg.plane, 1
  %.717 = or disjoint i64 %.714, 1
  %.834430.not = icmp slt i64 %arg.x.5.0, 1
  br i1 %.834430.not, label %common.ret, label %iter.check

iter.check:                                       ; preds = %B1745
  %.948 = fneg double %arg.law.8
  %min.iters.check = icmp ult i64 %arg.x.5.0, 4
  br i1 %min.iters.check, label %B1962.endif.preheader, label %vector.memcheck

vector.memcheck:                                  ; preds = %iter.check
  %scevgep = getelementptr i8, ptr %arg.out.4, i64 %arg.x.5.0
  %0 = shl i64 %arg.x.5.0, 2
  %scevgep7 = getelementptr i8, ptr %arg.x.4, i64 %0
  %1 = shl i64 %arg.x.5.0, 3
  %scevgep8 = getelementptr i8, ptr %arg.words.4, i64 %1
  %bound0 = icmp ult ptr %arg.out.4, %scevgep7
  %bound1 = icmp ult ptr %arg.x.4, %scevgep
  %found.conflict = and i1 %bound0, %bound1
  %bound09 = icmp ult ptr %arg.out.4, %scevgep8
  %bound110 = icmp ult ptr %arg.words.4, %scevgep
  %found.conflict11 = and i1 %bound09, %bound110
  %conflict.rdx = or i1 %found.conflict, %found.conflict11
  br i1 %conflict.rdx, label %B1962.endif.preheader, label %vector.main.loop.iter.check

vector.main.loop.iter.check:                      ; preds = %vector.memcheck
  %const = bitcast i64 9223372036854775792 to i64
  %min.iters.check12 = icmp ult i64 %arg.x.5.0, 16
  br i1 %min.iters.check12, label %vec.epilog.ph, label %vector.ph

vector.ph:                                        ; preds = %vector.main.loop.iter.check
  %n.vec = and i64 %arg.x.5.0, %const
  %broadcast.splatinsert = insertelement <4 x double> poison, double %.948, i64 0
  %broadcast.splat = shufflevector <4 x double> %broadcast.splatinsert, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert13 = insertelement <4 x double> poison, double %arg.law.8, i64 0
  %broadcast.splat14 = shufflevector <4 x double> %broadcast.splatinsert13, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert15 = insertelement <4 x double> poison, double %arg.law.9, i64 0
  %broadcast.splat16 = shufflevector <4 x double> %broadcast.splatinsert15, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert17 = insertelement <4 x double> poison, double %arg.law.10, i64 0
  %broadcast.splat18 = shufflevector <4 x double> %broadcast.splatinsert17, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert19 = insertelement <4 x i64> poison, i64 %arg.law.6, i64 0
  %broadcast.splat20 = shufflevector <4 x i64> %broadcast.splatinsert19, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert21 = insertelement <4 x i64> poison, i64 %arg.law.7, i64 0
  %broadcast.splat22 = shufflevector <4 x i64> %broadcast.splatinsert21, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert23 = insertelement <4 x i64> poison, i64 %arg.keep, i64 0
  %broadcast.splat24 = shufflevector <4 x i64> %broadcast.splatinsert23, <4 x i64> poison, <4 x i32> zeroinitializer
  br label %vector.body

vector.body:                                      ; preds = %vector.body, %vector.ph
  %index = phi i64 [ 0, %vector.ph ], [ %index.next, %vector.body ]
  %vec.phi = phi <4 x i64> [ zeroinitializer, %vector.ph ], [ %43, %vector.body ]
  %vec.phi25 = phi <4 x i64> [ zeroinitializer, %vector.ph ], [ %44, %vector.body ]
  %vec.phi26 = phi <4 x i64> [ zeroinitializer, %vector.ph ], [ %45, %vector.body ]
  %vec.phi27 = phi <4 x i64> [ zeroinitializer, %vector.ph ], [ %46, %vector.body ]
  %2 = icmp ult i64 %.717, %arg.law.5
  %sunkaddr = mul i64 %index, 4
  %sunkaddr283 = getelementptr i8, ptr %arg.x.4, i64 %sunkaddr
  %wide.load = load <4 x float>, ptr %sunkaddr283, align 4, !alias.scope !0, !noalias !3
  %sunkaddr284 = mul i64 %index, 4
  %sunkaddr285 = getelementptr i8, ptr %arg.x.4, i64 %sunkaddr284
  %sunkaddr286 = getelementptr i8, ptr %sunkaddr285, i64 16
  %wide.load28 = load <4 x float>, ptr %sunkaddr286, align 4, !alias.scope !0, !noalias !3
  %sunkaddr287 = mul i64 %index, 4
  %sunkaddr288 = getelementptr i8, ptr %arg.x.4, i64 %sunkaddr287
  %sunkaddr289 = getelementptr i8, ptr %sunkaddr288, i64 32
  %wide.load29 = load <4 x float>, ptr %sunkaddr289, align 4, !alias.scope !0, !noalias !3
  %sunkaddr290 = mul i64 %index, 4
  %sunkaddr291 = getelementptr i8, ptr %arg.x.4, i64 %sunkaddr290
  %sunkaddr292 = getelementptr i8, ptr %sunkaddr291, i64 48
  %wide.load30 = load <4 x float>, ptr %sunkaddr292, align 4, !alias.scope !0, !noalias !3
  %3 = fpext <4 x float> %wide.load to <4 x double>
  %4 = fpext <4 x float> %wide.load28 to <4 x double>
  %5 = fpext <4 x float> %wide.load29 to <4 x double>
  %6 = fpext <4 x float> %wide.load30 to <4 x double>
  %7 = fcmp olt <4 x double> %broadcast.splat, %3
  %8 = fcmp olt <4 x double> %broadcast.splat, %4
  %9 = fcmp olt <4 x double> %broadcast.splat, %5
  %10 = fcmp olt <4 x double> %broadcast.splat, %6
  %11 = select <4 x i1> %7, <4 x double> %3, <4 x double> %broadcast.splat
  %12 = select <4 x i1> %8, <4 x double> %4, <4 x double> %broadcast.splat
  %13 = select <4 x i1> %9, <4 x double> %5, <4 x double> %broadcast.splat
  %14 = select <4 x i1> %10, <4 x double> %6, <4 x double> %broadcast.splat
  %15 = fcmp olt <4 x double> %11, %broadcast.splat14
  %16 = fcmp olt <4 x double> %12, %broadcast.splat14
  %17 = fcmp olt <4 x double> %13, %broadcast.splat14
  %18 = fcmp olt <4 x double> %14, %broadcast.splat14
  %19 = select <4 x i1> %15, <4 x double> %11, <4 x double> %broadcast.splat14
  %20 = select <4 x i1> %16, <4 x double> %12, <4 x double> %broadcast.splat14
  %21 = select <4 x i1> %17, <4 x double> %13, <4 x double> %broadcast.splat14
  %22 = select <4 x i1> %18, <4 x double> %14, <4 x double> %broadcast.splat14
  %23 = fmul <4 x double> %broadcast.splat16, %19
  %24 = fmul <4 x double> %broadcast.splat16, %20
  %25 = fmul <4 x double> %broadcast.splat16, %21
  %26 = fmul <4 x double> %broadcast.splat16, %22
  %27 = fadd <4 x double> %broadcast.splat18, %23
  %28 = fadd <4 x double> %broadcast.splat18, %24
  %29 = fadd <4 x double> %broadcast.splat18, %25
  %30 = fadd <4 x double> %broadcast.splat18, %26
  %31 = bitcast <4 x double> %27 to <4 x i64>
  %32 = bitcast <4 x double> %28 to <4 x i64>
  %33 = bitcast <4 x double> %29 to <4 x i64>
  %34 = bitcast <4 x double> %30 to <4 x i64>
  %35 = call <4 x i1> @llvm.is.fpclass.v4f64(<4 x double> %3, i32 519)
  %36 = call <4 x i1> @llvm.is.fpclass.v4f64(<4 x double> %4, i32 519)
  %37 = call <4 x i1> @llvm.is.fpclass.v4f64(<4 x double> %5, i32 519)
  %38 = call <4 x i1> @llvm.is.fpclass.v4f64(<4 x double> %6, i32 519)
  %39 = zext <4 x i1> %35 to <4 x i64>
  %40 = zext <4 x i1> %36 to <4 x i64>
  %41 = zext <4 x i1> %37 to <4 x i64>
  %42 = zext <4 x i1> %38 to <4 x i64>
  %43 = or <4 x i64> %vec.phi, %39
  %44 = or <4 x i64> %vec.phi25, %40
  %45 = or <4 x i64> %vec.phi26, %41
  %46 = or <4 x i64> %vec.phi27, %42
  %47 = and <4 x i64> %31, splat (i64 2251799813685247)
  %48 = and <4 x i64> %32, splat (i64 2251799813685247)
  %49 = and <4 x i64> %33, splat (i64 2251799813685247)
  %50 = and <4 x i64> %34, splat (i64 2251799813685247)
  %51 = tail call <4 x i64> @llvm.umax.v4i64(<4 x i64> %47, <4 x i64> %broadcast.splat20)
  %52 = tail call <4 x i64> @llvm.umax.v4i64(<4 x i64> %48, <4 x i64> %broadcast.splat20)
  %53 = tail call <4 x i64> @llvm.umax.v4i64(<4 x i64> %49, <4 x i64> %broadcast.splat20)
  %54 = tail call <4 x i64> @llvm.umax.v4i64(<4 x i64> %50, <4 x i64> %broadcast.splat20)
  %55 = tail call <4 x i64> @llvm.umin.v4i64(<4 x i64> %51, <4 x i64> %broadcast.splat22)
  %56 = tail call <4 x i64> @llvm.umin.v4i64(<4 x i64> %52, <4 x i64> %broadcast.splat22)
  %57 = tail call <4 x i64> @llvm.umin.v4i64(<4 x i64> %53, <4 x i64> %broadcast.splat22)
  %58 = tail call <4 x i64> @llvm.umin.v4i64(<4 x i64> %54, <4 x i64> %broadcast.splat22)
  %sunkaddr293 = mul i64 %index, 8
  %sunkaddr294 = getelementptr i8, ptr %arg.words.4, i64 %sunkaddr293
  %wide.load31 = load <4 x i64>, ptr %sunkaddr294, align 8, !alias.scope !6, !noalias !3
  %sunkaddr295 = mul i64 %index, 8
  %sunkaddr296 = getelementptr i8, ptr %arg.words.4, i64 %sunkaddr295
  %sunkaddr297 = getelementptr i8, ptr %sunkaddr296, i64 32
  %wide.load32 = load <4 x i64>, ptr %sunkaddr297, align 8, !alias.scope !6, !noalias !3
  %sunkaddr298 = mul i64 %index, 8
  %sunkaddr299 = getelementptr i8, ptr %arg.words.4, i64 %sunkaddr298
  %sunkaddr300 = getelementptr i8, ptr %sunkaddr299, i64 64
  %wide.load33 = load <4 x i64>, ptr %sunkaddr300, align 8, !alias.scope !6, !noalias !3
  %sunkaddr301 = mul i64 %index, 8
  %sunkaddr302 = getelementptr i8, ptr %arg.words.4, i64 %sunkaddr301
  %sunkaddr303 = getelementptr i8, ptr %sunkaddr302, i64 96
  %wide.load34 = load <4 x i64>, ptr %sunkaddr303, align 8, !alias.scope !6, !noalias !3
  %59 = lshr <4 x i64> %wide.load31, splat (i64 40)
  %60 = lshr <4 x i64> %wide.load32, splat (i64 40)
  %61 = lshr <4 x i64> %wide.load33, splat (i64 40)
  %62 = lshr <4 x i64> %wide.load34, splat (i64 40)
  %63 = icmp ult <4 x i64> %59, %55
  %64 = icmp ult <4 x i64> %60, %56
  %65 = icmp ult <4 x i64> %61, %57
  %66 = icmp ult <4 x i64> %62, %58
  %67 = zext <4 x i1> %63 to <4 x i64>
  %68 = zext <4 x i1> %64 to <4 x i64>
  %69 = zext <4 x i1> %65 to <4 x i64>
  %70 = zext <4 x i1> %66 to <4 x i64>
  %71 = and <4 x i64> %wide.load31, splat (i64 16777215)
  %72 = and <4 x i64> %wide.load32, splat (i64 16777215)
  %73 = and <4 x i64> %wide.load33, splat (i64 16777215)
  %74 = and <4 x i64> %wide.load34, splat (i64 16777215)
  %75 = icmp ugt <4 x i64> %55, %71
  %76 = icmp ugt <4 x i64> %56, %72
  %77 = icmp ugt <4 x i64> %57, %73
  %78 = icmp ugt <4 x i64> %58, %74
  %79 = select i1 %2, <4 x i1> %75, <4 x i1> zeroinitializer
  %80 = select i1 %2, <4 x i1> %76, <4 x i1> zeroinitializer
  %81 = select i1 %2, <4 x i1> %77, <4 x i1> zeroinitializer
  %82 = select i1 %2, <4 x i1> %78, <4 x i1> zeroinitializer
  %83 = zext <4 x i1> %79 to <4 x i64>
  %84 = zext <4 x i1> %80 to <4 x i64>
  %85 = zext <4 x i1> %81 to <4 x i64>
  %86 = zext <4 x i1> %82 to <4 x i64>
  %sunkaddr309 = getelementptr i8, ptr %arg.out.4, i64 %index
  %sunkaddr310 = getelementptr i8, ptr %sunkaddr309, i64 12
  %sunkaddr304 = getelementptr i8, ptr %arg.out.4, i64 %index
  %wide.load35 = load <4 x i8>, ptr %sunkaddr304, align 1, !alias.scope !8, !noalias !10
  %sunkaddr305 = getelementptr i8, ptr %arg.out.4, i64 %index
  %sunkaddr306 = getelementptr i8, ptr %sunkaddr305, i64 4
  %wide.load36 = load <4 x i8>, ptr %sunkaddr306, align 1, !alias.scope !8, !noalias !10
  %sunkaddr307 = getelementptr i8, ptr %arg.out.4, i64 %index
  %sunkaddr308 = getelementptr i8, ptr %sunkaddr307, i64 8
  %wide.load37 = load <4 x i8>, ptr %sunkaddr308, align 1, !alias.scope !8, !noalias !10
  %wide.load38 = load <4 x i8>, ptr %sunkaddr310, align 1, !alias.scope !8, !noalias !10
  %87 = zext <4 x i8> %wide.load35 to <4 x i64>
  %88 = zext <4 x i8> %wide.load36 to <4 x i64>
  %89 = zext <4 x i8> %wide.load37 to <4 x i64>
  %90 = zext <4 x i8> %wide.load38 to <4 x i64>
  %91 = and <4 x i64> %broadcast.splat24, %87
  %92 = and <4 x i64> %broadcast.splat24, %88
  %93 = and <4 x i64> %broadcast.splat24, %89
  %94 = and <4 x i64> %broadcast.splat24, %90
  %95 = add nuw nsw <4 x i64> %91, %67
  %96 = add nuw nsw <4 x i64> %92, %68
  %97 = add nuw nsw <4 x i64> %93, %69
  %98 = add nuw nsw <4 x i64> %94, %70
  %99 = add nuw nsw <4 x i64> %95, %83
  %100 = add nuw nsw <4 x i64> %96, %84
  %101 = add nuw nsw <4 x i64> %97, %85
  %102 = add nuw nsw <4 x i64> %98, %86
  %103 = trunc <4 x i64> %99 to <4 x i8>
  %104 = trunc <4 x i64> %100 to <4 x i8>
  %105 = trunc <4 x i64> %101 to <4 x i8>
  %106 = trunc <4 x i64> %102 to <4 x i8>
  store <4 x i8> %103, ptr %sunkaddr304, align 1, !alias.scope !8, !noalias !10
  store <4 x i8> %104, ptr %sunkaddr306, align 1, !alias.scope !8, !noalias !10
  store <4 x i8> %105, ptr %sunkaddr308, align 1, !alias.scope !8, !noalias !10
  store <4 x i8> %106, ptr %sunkaddr310, align 1, !alias.scope !8, !noalias !10
  %index.next = add nuw i64 %index, 16
  %107 = icmp eq i64 %n.vec, %index.next
  br i1 %107, label %middle.block, label %vector.body, !llvm.loop !11

middle.block:                                     ; preds = %vector.body
  %bin.rdx = or <4 x i64> %44, %43
  %bin.rdx39 = or <4 x i64> %45, %bin.rdx
  %bin.rdx40 = or <4 x i64> %46, %bin.rdx39
  %rdx.shuf = shufflevector <4 x i64> %bin.rdx40, <4 x i64> poison, <4 x i32> <i32 2, i32 3, i32 poison, i32 poison>
  %bin.rdx268 = or <4 x i64> %bin.rdx40, %rdx.shuf
  %rdx.shuf269 = shufflevector <4 x i64> %bin.rdx268, <4 x i64> poison, <4 x i32> <i32 1, i32 poison, i32 poison, i32 poison>
  %bin.rdx270 = or <4 x i64> %bin.rdx268, %rdx.shuf269
  %108 = extractelement <4 x i64> %bin.rdx270, i32 0
  %cmp.n = icmp eq i64 %arg.x.5.0, %n.vec
  br i1 %cmp.n, label %common.ret, label %vec.epilog.iter.check

vec.epilog.iter.check:                            ; preds = %middle.block
  %109 = and i64 %arg.x.5.0, 12
  %min.epilog.iters.check = icmp eq i64 %109, 0
  br i1 %min.epilog.iters.check, label %B1962.endif.preheader, label %vec.epilog.ph, !prof !14

vec.epilog.ph:                                    ; preds = %vector.main.loop.iter.check, %vec.epilog.iter.check
  %vec.epilog.resume.val = phi i64 [ %n.vec, %vec.epilog.iter.check ], [ 0, %vector.main.loop.iter.check ]
  %bc.merge.rdx = phi i64 [ %108, %vec.epilog.iter.check ], [ 0, %vector.main.loop.iter.check ]
  %const_mat = add i64 %const, 12
  %n.vec42 = and i64 %arg.x.5.0, %const_mat
  %110 = insertelement <4 x i64> <i64 poison, i64 0, i64 0, i64 0>, i64 %bc.merge.rdx, i64 0
  %broadcast.splatinsert43 = insertelement <4 x double> poison, double %.948, i64 0
  %broadcast.splat44 = shufflevector <4 x double> %broadcast.splatinsert43, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert45 = insertelement <4 x double> poison, double %arg.law.8, i64 0
  %broadcast.splat46 = shufflevector <4 x double> %broadcast.splatinsert45, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert47 = insertelement <4 x double> poison, double %arg.law.9, i64 0
  %broadcast.splat48 = shufflevector <4 x double> %broadcast.splatinsert47, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert49 = insertelement <4 x double> poison, double %arg.law.10, i64 0
  %broadcast.splat50 = shufflevector <4 x double> %broadcast.splatinsert49, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert51 = insertelement <4 x i64> poison, i64 %arg.law.6, i64 0
  %broadcast.splat52 = shufflevector <4 x i64> %broadcast.splatinsert51, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert53 = insertelement <4 x i64> poison, i64 %arg.law.7, i64 0
  %broadcast.splat54 = shufflevector <4 x i64> %broadcast.splatinsert53, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert55 = insertelement <4 x i64> poison, i64 %arg.keep, i64 0
  %broadcast.splat56 = shufflevector <4 x i64> %broadcast.splatinsert55, <4 x i64> poison, <4 x i32> zeroinitializer
  br label %vec.epilog.vector.body

vec.epilog.vector.body:                           ; preds = %vec.epilog.vector.body, %vec.epilog.ph
  %index57 = phi i64 [ %vec.epilog.resume.val, %vec.epilog.ph ], [ %index.next62, %vec.epilog.vector.body ]
  %vec.phi58 = phi <4 x i64> [ %110, %vec.epilog.ph ], [ %123, %vec.epilog.vector.body ]
  %111 = icmp ult i64 %.717, %arg.law.5
  %112 = shl i64 %index57, 2
  %scevgep244 = getelementptr i8, ptr %arg.x.4, i64 %112
  %wide.load59 = load <4 x float>, ptr %scevgep244, align 4, !alias.scope !0, !noalias !3
  %113 = fpext <4 x float> %wide.load59 to <4 x double>
  %114 = fcmp olt <4 x double> %broadcast.splat44, %113
  %115 = select <4 x i1> %114, <4 x double> %113, <4 x double> %broadcast.splat44
  %116 = fcmp olt <4 x double> %115, %broadcast.splat46
  %117 = select <4 x i1> %116, <4 x double> %115, <4 x double> %broadcast.splat46
  %118 = fmul <4 x double> %broadcast.splat48, %117
  %119 = fadd <4 x double> %broadcast.splat50, %118
  %120 = bitcast <4 x double> %119 to <4 x i64>
  %121 = call <4 x i1> @llvm.is.fpclass.v4f64(<4 x double> %113, i32 519)
  %122 = zext <4 x i1> %121 to <4 x i64>
  %123 = or <4 x i64> %vec.phi58, %122
  %124 = and <4 x i64> %120, splat (i64 2251799813685247)
  %125 = tail call <4 x i64> @llvm.umax.v4i64(<4 x i64> %124, <4 x i64> %broadcast.splat52)
  %126 = tail call <4 x i64> @llvm.umin.v4i64(<4 x i64> %125, <4 x i64> %broadcast.splat54)
  %127 = shl i64 %index57, 3
  %scevgep243 = getelementptr i8, ptr %arg.words.4, i64 %127
  %wide.load60 = load <4 x i64>, ptr %scevgep243, align 8, !alias.scope !6, !noalias !3
  %128 = lshr <4 x i64> %wide.load60, splat (i64 40)
  %129 = icmp ult <4 x i64> %128, %126
  %130 = zext <4 x i1> %129 to <4 x i64>
  %131 = and <4 x i64> %wide.load60, splat (i64 16777215)
  %132 = icmp ugt <4 x i64> %126, %131
  %133 = select i1 %111, <4 x i1> %132, <4 x i1> zeroinitializer
  %134 = zext <4 x i1> %133 to <4 x i64>
  %135 = getelementptr i8, ptr %arg.out.4, i64 %index57
  %wide.load61 = load <4 x i8>, ptr %135, align 1, !alias.scope !8, !noalias !10
  %136 = zext <4 x i8> %wide.load61 to <4 x i64>
  %137 = and <4 x i64> %broadcast.splat56, %136
  %138 = add nuw nsw <4 x i64> %137, %130
  %139 = add nuw nsw <4 x i64> %138, %134
  %140 = trunc <4 x i64> %139 to <4 x i8>
  store <4 x i8> %140, ptr %135, align 1, !alias.scope !8, !noalias !10
  %index.next62 = add nuw i64 %index57, 4
  %141 = icmp eq i64 %n.vec42, %index.next62
  br i1 %141, label %vec.epilog.middle.block, label %vec.epilog.vector.body, !llvm.loop !15

vec.epilog.middle.block:                          ; preds = %vec.epilog.vector.body
  %rdx.shuf271 = shufflevector <4 x i64> %123, <4 x i64> poison, <4 x i32> <i32 2, i32 3, i32 poison, i32 poison>
  %bin.rdx272 = or <4 x i64> %123, %rdx.shuf271
  %rdx.shuf273 = shufflevector <4 x i64> %bin.rdx272, <4 x i64> poison, <4 x i32> <i32 1, i32 poison, i32 poison, i32 poison>
  %bin.rdx274 = or <4 x i64> %bin.rdx272, %rdx.shuf273
  %142 = extractelement <4 x i64> %bin.rdx274, i32 0
  %cmp.n63 = icmp eq i64 %arg.x.5.0, %n.vec42
  br i1 %cmp.n63, label %common.ret, label %B1962.endif.preheader

B1962.endif.preheader:                            ; preds = %vector.memcheck, %iter.check, %vec.epilog.iter.check, %vec.epilog.middle.block
  %bad.4.1433.ph = phi i64 [ 0, %iter.check ], [ 0, %vector.memcheck ], [ %108, %vec.epilog.iter.check ], [ %142, %vec.epilog.middle.block ]
  %.840428431.ph = phi i64 [ 0, %iter.check ], [ 0, %vector.memcheck ], [ %n.vec, %vec.epilog.iter.check ], [ %n.vec42, %vec.epilog.middle.block ]
  %.neg = or disjoint i64 %.840428431.ph, 1
  %xtraiter = and i64 %arg.x.5.0, 1
  %lcmp.mod.not = icmp eq i64 %xtraiter, 0
  br i1 %lcmp.mod.not, label %B1962.endif.prol.loopexit, label %B1962.endif.prol

B1962.endif.prol:                                 ; preds = %B1962.endif.preheader
  %143 = icmp ult i64 %.717, %arg.law.5
  %.847.prol = or disjoint i64 %.840428431.ph, 1
  %.885.prol = getelementptr float, ptr %arg.x.4, i64 %.840428431.ph
  %.886.prol = load float, ptr %.885.prol, align 4, !noalias !3
  %.887.prol = fpext float %.886.prol to double
  %.950.prol = fcmp ogt double %.887.prol, %.948
  %_place_v2__vphi26_0.2.1.prol = select i1 %.950.prol, double %.887.prol, double %.948
  %.974.prol = fcmp olt double %_place_v2__vphi26_0.2.1.prol, %arg.law.8
  %_place_v2__vphi46_0.2.1.prol = select i1 %.974.prol, double %_place_v2__vphi26_0.2.1.prol, double %arg.law.8
  %.997.prol = fmul double %arg.law.9, %_place_v2__vphi46_0.2.1.prol
  %.1001.prol = fadd double %arg.law.10, %.997.prol
  %144 = bitcast double %.1001.prol to i64
  %145 = call i1 @llvm.is.fpclass.f64(double %.887.prol, i32 519)
  %.915.prol = zext i1 %145 to i64
  %.917.prol = or i64 %bad.4.1433.ph, %.915.prol
  %.1028.prol = and i64 %144, 2251799813685247
  %_place_v2__vphi196_0.2.1.prol = tail call i64 @llvm.umax.i64(i64 %.1028.prol, i64 %arg.law.6)
  %_place_v2__vphi216_0.2.1.prol = tail call i64 @llvm.umin.i64(i64 %_place_v2__vphi196_0.2.1.prol, i64 %arg.law.7)
  %.1096.prol = getelementptr i64, ptr %arg.words.4, i64 %.840428431.ph
  %.1097.prol = load i64, ptr %.1096.prol, align 8, !noalias !3
  %.1098.prol = lshr i64 %.1097.prol, 40
  %.1099.prol = icmp ult i64 %.1098.prol, %_place_v2__vphi216_0.2.1.prol
  %.1101.prol = zext i1 %.1099.prol to i64
  %.1102.prol = and i64 %.1097.prol, 16777215
  %.1105416.prol = icmp ugt i64 %_place_v2__vphi216_0.2.1.prol, %.1102.prol
  %.1105.prol = select i1 %143, i1 %.1105416.prol, i1 false
  %.1107.prol = zext i1 %.1105.prol to i64
  %.1117.prol = getelementptr i8, ptr %arg.out.4, i64 %.840428431.ph
  %.1118.prol = load i8, ptr %.1117.prol, align 1, !noalias !3
  %.1119.prol = zext i8 %.1118.prol to i64
  %.1121.prol = and i64 %arg.keep, %.1119.prol
  %.1108.prol = add nuw nsw i64 %.1121.prol, %.1101.prol
  %.1122.prol = add nuw nsw i64 %.1108.prol, %.1107.prol
  %.1132.prol = trunc i64 %.1122.prol to i8
  store i8 %.1132.prol, ptr %.1117.prol, align 1, !noalias !3
  br label %B1962.endif.prol.loopexit

B1962.endif.prol.loopexit:                        ; preds = %B1962.endif.prol, %B1962.endif.preheader
  %.917.lcssa.unr = phi i64 [ poison, %B1962.endif.preheader ], [ %.917.prol, %B1962.endif.prol ]
  %bad.4.1433.unr = phi i64 [ %bad.4.1433.ph, %B1962.endif.preheader ], [ %.917.prol, %B1962.endif.prol ]
  %.840428431.unr = phi i64 [ %.840428431.ph, %B1962.endif.preheader ], [ %.847.prol, %B1962.endif.prol ]
  %146 = icmp eq i64 %arg.x.5.0, %.neg
  br i1 %146, label %common.ret, label %B1962.endif.preheader205

B1962.endif.preheader205:                         ; preds = %B1962.endif.prol.loopexit
  br label %B1962.endif

common.ret:                                       ; preds = %B1962.endif, %B1962.endif.prol.loopexit, %middle.block, %vec.epilog.middle.block, %B1743, %B1745
  %x.sroa.0.0 = phi ptr [ null, %B1743 ], [ %arg.x.0, %B1745 ], [ %arg.x.0, %middle.block ], [ %arg.x.0, %vec.epilog.middle.block ], [ %arg.x.0, %B1962.endif.prol.loopexit ], [ %arg.x.0, %B1962.endif ]
  %words.sroa.0.0 = phi ptr [ null, %B1743 ], [ %arg.words.0, %B1745 ], [ %arg.words.0, %middle.block ], [ %arg.words.0, %vec.epilog.middle.block ], [ %arg.words.0, %B1962.endif.prol.loopexit ], [ %arg.words.0, %B1962.endif ]
  %out.sroa.0.0 = phi ptr [ null, %B1743 ], [ %arg.out.0, %B1745 ], [ %arg.out.0, %middle.block ], [ %arg.out.0, %vec.epilog.middle.block ], [ %arg.out.0, %B1962.endif.prol.loopexit ], [ %arg.out.0, %B1962.endif ]
  %bad.5.0 = phi i64 [ %bad.3.0.lcssa, %B1743 ], [ 0, %B1745 ], [ %108, %middle.block ], [ %142, %vec.epilog.middle.block ], [ %.917.lcssa.unr, %B1962.endif.prol.loopexit ], [ %.917.1, %B1962.endif ]
  tail call void @NRT_decref(ptr %x.sroa.0.0)
  tail call void @NRT_decref(ptr %words.sroa.0.0)
  tail call void @NRT_decref(ptr %out.sroa.0.0)
  store i64 %bad.5.0, ptr %retptr, align 8
  ret i32 0

B102.endif:                                       ; preds = %B0
  %.156 = sub i64 40, %arg.law.1
  %notmask = shl nsw i64 -1, %.156
  %.162 = xor i64 %notmask, -1
  %notmask417 = shl nsw i64 -1, %arg.law.1
  %.168 = xor i64 %notmask417, -1
  %.263440.not = icmp slt i64 %arg.x.5.0, 1
  br i1 %.263440.not, label %B1743, label %iter.check78

iter.check78:                                     ; preds = %B102.endif
  %.375 = fneg double %arg.law.8
  %min.iters.check76 = icmp ult i64 %arg.x.5.0, 4
  br i1 %min.iters.check76, label %B892.endif.preheader, label %vector.memcheck65

vector.memcheck65:                                ; preds = %iter.check78
  %scevgep66 = getelementptr i8, ptr %arg.out.4, i64 %arg.x.5.0
  %147 = shl i64 %arg.x.5.0, 2
  %scevgep67 = getelementptr i8, ptr %arg.x.4, i64 %147
  %148 = shl i64 %arg.x.5.0, 3
  %scevgep68 = getelementptr i8, ptr %arg.words.4, i64 %148
  %bound069 = icmp ult ptr %arg.out.4, %scevgep67
  %bound170 = icmp ult ptr %arg.x.4, %scevgep66
  %found.conflict71 = and i1 %bound069, %bound170
  %bound072 = icmp ult ptr %arg.out.4, %scevgep68
  %bound173 = icmp ult ptr %arg.words.4, %scevgep66
  %found.conflict74 = and i1 %bound072, %bound173
  %conflict.rdx75 = or i1 %found.conflict71, %found.conflict74
  br i1 %conflict.rdx75, label %B892.endif.preheader, label %vector.main.loop.iter.check80

vector.main.loop.iter.check80:                    ; preds = %vector.memcheck65
  %const266 = bitcast i64 9223372036854775792 to i64
  %min.iters.check79 = icmp ult i64 %arg.x.5.0, 16
  br i1 %min.iters.check79, label %vec.epilog.ph144, label %vector.ph81

vector.ph81:                                      ; preds = %vector.main.loop.iter.check80
  %n.vec83 = and i64 %arg.x.5.0, %const266
  %broadcast.splatinsert84 = insertelement <4 x double> poison, double %.375, i64 0
  %broadcast.splat85 = shufflevector <4 x double> %broadcast.splatinsert84, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert86 = insertelement <4 x double> poison, double %arg.law.8, i64 0
  %broadcast.splat87 = shufflevector <4 x double> %broadcast.splatinsert86, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert88 = insertelement <4 x double> poison, double %arg.law.9, i64 0
  %broadcast.splat89 = shufflevector <4 x double> %broadcast.splatinsert88, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert90 = insertelement <4 x double> poison, double %arg.law.10, i64 0
  %broadcast.splat91 = shufflevector <4 x double> %broadcast.splatinsert90, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert92 = insertelement <4 x i64> poison, i64 %arg.law.6, i64 0
  %broadcast.splat93 = shufflevector <4 x i64> %broadcast.splatinsert92, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert94 = insertelement <4 x i64> poison, i64 %arg.law.7, i64 0
  %broadcast.splat95 = shufflevector <4 x i64> %broadcast.splatinsert94, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert96 = insertelement <4 x i64> poison, i64 %.156, i64 0
  %broadcast.splat97 = shufflevector <4 x i64> %broadcast.splatinsert96, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert98 = insertelement <4 x i64> poison, i64 %.168, i64 0
  %broadcast.splat99 = shufflevector <4 x i64> %broadcast.splatinsert98, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert100 = insertelement <4 x i64> poison, i64 %arg.law.2, i64 0
  %broadcast.splat101 = shufflevector <4 x i64> %broadcast.splatinsert100, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert102 = insertelement <4 x i64> poison, i64 %arg.law.1, i64 0
  %broadcast.splat103 = shufflevector <4 x i64> %broadcast.splatinsert102, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert104 = insertelement <4 x i64> poison, i64 %.162, i64 0
  %broadcast.splat105 = shufflevector <4 x i64> %broadcast.splatinsert104, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert106 = insertelement <4 x i64> poison, i64 %arg.law.3, i64 0
  %broadcast.splat107 = shufflevector <4 x i64> %broadcast.splatinsert106, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert108 = insertelement <4 x i64> poison, i64 %arg.law.4, i64 0
  %broadcast.splat109 = shufflevector <4 x i64> %broadcast.splatinsert108, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert110 = insertelement <4 x i64> poison, i64 %arg.keep, i64 0
  %broadcast.splat111 = shufflevector <4 x i64> %broadcast.splatinsert110, <4 x i64> poison, <4 x i32> zeroinitializer
  br label %vector.body112

vector.body112:                                   ; preds = %vector.body112, %vector.ph81
  %index113 = phi i64 [ 0, %vector.ph81 ], [ %index.next133, %vector.body112 ]
  %vec.phi114 = phi <4 x i64> [ zeroinitializer, %vector.ph81 ], [ %189, %vector.body112 ]
  %vec.phi115 = phi <4 x i64> [ zeroinitializer, %vector.ph81 ], [ %190, %vector.body112 ]
  %vec.phi116 = phi <4 x i64> [ zeroinitializer, %vector.ph81 ], [ %191, %vector.body112 ]
  %vec.phi117 = phi <4 x i64> [ zeroinitializer, %vector.ph81 ], [ %192, %vector.body112 ]
  %sunkaddr311 = mul i64 %index113, 4
  %sunkaddr312 = getelementptr i8, ptr %arg.x.4, i64 %sunkaddr311
  %wide.load118 = load <4 x float>, ptr %sunkaddr312, align 4, !alias.scope !16, !noalias !3
  %sunkaddr313 = mul i64 %index113, 4
  %sunkaddr314 = getelementptr i8, ptr %arg.x.4, i64 %sunkaddr313
  %sunkaddr315 = getelementptr i8, ptr %sunkaddr314, i64 16
  %wide.load119 = load <4 x float>, ptr %sunkaddr315, align 4, !alias.scope !16, !noalias !3
  %sunkaddr316 = mul i64 %index113, 4
  %sunkaddr317 = getelementptr i8, ptr %arg.x.4, i64 %sunkaddr316
  %sunkaddr318 = getelementptr i8, ptr %sunkaddr317, i64 32
  %wide.load120 = load <4 x float>, ptr %sunkaddr318, align 4, !alias.scope !16, !noalias !3
  %sunkaddr319 = mul i64 %index113, 4
  %sunkaddr320 = getelementptr i8, ptr %arg.x.4, i64 %sunkaddr319
  %sunkaddr321 = getelementptr i8, ptr %sunkaddr320, i64 48
  %wide.load121 = load <4 x float>, ptr %sunkaddr321, align 4, !alias.scope !16, !noalias !3
  %149 = fpext <4 x float> %wide.load118 to <4 x double>
  %150 = fpext <4 x float> %wide.load119 to <4 x double>
  %151 = fpext <4 x float> %wide.load120 to <4 x double>
  %152 = fpext <4 x float> %wide.load121 to <4 x double>
  %153 = fcmp olt <4 x double> %broadcast.splat85, %149
  %154 = fcmp olt <4 x double> %broadcast.splat85, %150
  %155 = fcmp olt <4 x double> %broadcast.splat85, %151
  %156 = fcmp olt <4 x double> %broadcast.splat85, %152
  %157 = select <4 x i1> %153, <4 x double> %149, <4 x double> %broadcast.splat85
  %158 = select <4 x i1> %154, <4 x double> %150, <4 x double> %broadcast.splat85
  %159 = select <4 x i1> %155, <4 x double> %151, <4 x double> %broadcast.splat85
  %160 = select <4 x i1> %156, <4 x double> %152, <4 x double> %broadcast.splat85
  %161 = fcmp olt <4 x double> %157, %broadcast.splat87
  %162 = fcmp olt <4 x double> %158, %broadcast.splat87
  %163 = fcmp olt <4 x double> %159, %broadcast.splat87
  %164 = fcmp olt <4 x double> %160, %broadcast.splat87
  %165 = select <4 x i1> %161, <4 x double> %157, <4 x double> %broadcast.splat87
  %166 = select <4 x i1> %162, <4 x double> %158, <4 x double> %broadcast.splat87
  %167 = select <4 x i1> %163, <4 x double> %159, <4 x double> %broadcast.splat87
  %168 = select <4 x i1> %164, <4 x double> %160, <4 x double> %broadcast.splat87
  %169 = fmul <4 x double> %broadcast.splat89, %165
  %170 = fmul <4 x double> %broadcast.splat89, %166
  %171 = fmul <4 x double> %broadcast.splat89, %167
  %172 = fmul <4 x double> %broadcast.splat89, %168
  %173 = fadd <4 x double> %broadcast.splat91, %169
  %174 = fadd <4 x double> %broadcast.splat91, %170
  %175 = fadd <4 x double> %broadcast.splat91, %171
  %176 = fadd <4 x double> %broadcast.splat91, %172
  %177 = bitcast <4 x double> %173 to <4 x i64>
  %178 = bitcast <4 x double> %174 to <4 x i64>
  %179 = bitcast <4 x double> %175 to <4 x i64>
  %180 = bitcast <4 x double> %176 to <4 x i64>
  %181 = call <4 x i1> @llvm.is.fpclass.v4f64(<4 x double> %149, i32 519)
  %182 = call <4 x i1> @llvm.is.fpclass.v4f64(<4 x double> %150, i32 519)
  %183 = call <4 x i1> @llvm.is.fpclass.v4f64(<4 x double> %151, i32 519)
  %184 = call <4 x i1> @llvm.is.fpclass.v4f64(<4 x double> %152, i32 519)
  %185 = zext <4 x i1> %181 to <4 x i64>
  %186 = zext <4 x i1> %182 to <4 x i64>
  %187 = zext <4 x i1> %183 to <4 x i64>
  %188 = zext <4 x i1> %184 to <4 x i64>
  %189 = or <4 x i64> %vec.phi114, %185
  %190 = or <4 x i64> %vec.phi115, %186
  %191 = or <4 x i64> %vec.phi116, %187
  %192 = or <4 x i64> %vec.phi117, %188
  %193 = and <4 x i64> %177, splat (i64 2251799813685247)
  %194 = and <4 x i64> %178, splat (i64 2251799813685247)
  %195 = and <4 x i64> %179, splat (i64 2251799813685247)
  %196 = and <4 x i64> %180, splat (i64 2251799813685247)
  %197 = tail call <4 x i64> @llvm.umax.v4i64(<4 x i64> %193, <4 x i64> %broadcast.splat93)
  %198 = tail call <4 x i64> @llvm.umax.v4i64(<4 x i64> %194, <4 x i64> %broadcast.splat93)
  %199 = tail call <4 x i64> @llvm.umax.v4i64(<4 x i64> %195, <4 x i64> %broadcast.splat93)
  %200 = tail call <4 x i64> @llvm.umax.v4i64(<4 x i64> %196, <4 x i64> %broadcast.splat93)
  %201 = tail call <4 x i64> @llvm.umin.v4i64(<4 x i64> %197, <4 x i64> %broadcast.splat95)
  %202 = tail call <4 x i64> @llvm.umin.v4i64(<4 x i64> %198, <4 x i64> %broadcast.splat95)
  %203 = tail call <4 x i64> @llvm.umin.v4i64(<4 x i64> %199, <4 x i64> %broadcast.splat95)
  %204 = tail call <4 x i64> @llvm.umin.v4i64(<4 x i64> %200, <4 x i64> %broadcast.splat95)
  %sunkaddr322 = mul i64 %index113, 8
  %sunkaddr323 = getelementptr i8, ptr %arg.words.4, i64 %sunkaddr322
  %wide.load122 = load <4 x i64>, ptr %sunkaddr323, align 8, !alias.scope !19, !noalias !3
  %sunkaddr324 = mul i64 %index113, 8
  %sunkaddr325 = getelementptr i8, ptr %arg.words.4, i64 %sunkaddr324
  %sunkaddr326 = getelementptr i8, ptr %sunkaddr325, i64 32
  %wide.load123 = load <4 x i64>, ptr %sunkaddr326, align 8, !alias.scope !19, !noalias !3
  %sunkaddr327 = mul i64 %index113, 8
  %sunkaddr328 = getelementptr i8, ptr %arg.words.4, i64 %sunkaddr327
  %sunkaddr329 = getelementptr i8, ptr %sunkaddr328, i64 64
  %wide.load124 = load <4 x i64>, ptr %sunkaddr329, align 8, !alias.scope !19, !noalias !3
  %sunkaddr330 = mul i64 %index113, 8
  %sunkaddr331 = getelementptr i8, ptr %arg.words.4, i64 %sunkaddr330
  %sunkaddr332 = getelementptr i8, ptr %sunkaddr331, i64 96
  %wide.load125 = load <4 x i64>, ptr %sunkaddr332, align 8, !alias.scope !19, !noalias !3
  %205 = lshr <4 x i64> %201, splat (i64 24)
  %206 = lshr <4 x i64> %202, splat (i64 24)
  %207 = lshr <4 x i64> %203, splat (i64 24)
  %208 = lshr <4 x i64> %204, splat (i64 24)
  %209 = lshr <4 x i64> %wide.load122, splat (i64 40)
  %210 = lshr <4 x i64> %wide.load123, splat (i64 40)
  %211 = lshr <4 x i64> %wide.load124, splat (i64 40)
  %212 = lshr <4 x i64> %wide.load125, splat (i64 40)
  %213 = and <4 x i64> %201, splat (i64 16777215)
  %214 = and <4 x i64> %202, splat (i64 16777215)
  %215 = and <4 x i64> %203, splat (i64 16777215)
  %216 = and <4 x i64> %204, splat (i64 16777215)
  %217 = icmp samesign ult <4 x i64> %209, %213
  %218 = icmp samesign ult <4 x i64> %210, %214
  %219 = icmp samesign ult <4 x i64> %211, %215
  %220 = icmp samesign ult <4 x i64> %212, %216
  %221 = zext <4 x i1> %217 to <4 x i64>
  %222 = zext <4 x i1> %218 to <4 x i64>
  %223 = zext <4 x i1> %219 to <4 x i64>
  %224 = zext <4 x i1> %220 to <4 x i64>
  %225 = add nuw nsw <4 x i64> %205, %221
  %226 = add nuw nsw <4 x i64> %206, %222
  %227 = add nuw nsw <4 x i64> %207, %223
  %228 = add nuw nsw <4 x i64> %208, %224
  %229 = lshr <4 x i64> %wide.load122, %broadcast.splat97
  %230 = lshr <4 x i64> %wide.load123, %broadcast.splat97
  %231 = lshr <4 x i64> %wide.load124, %broadcast.splat97
  %232 = lshr <4 x i64> %wide.load125, %broadcast.splat97
  %233 = and <4 x i64> %229, %broadcast.splat99
  %234 = and <4 x i64> %230, %broadcast.splat99
  %235 = and <4 x i64> %231, %broadcast.splat99
  %236 = and <4 x i64> %232, %broadcast.splat99
  %237 = and <4 x i64> %225, %broadcast.splat101
  %238 = and <4 x i64> %226, %broadcast.splat101
  %239 = and <4 x i64> %227, %broadcast.splat101
  %240 = and <4 x i64> %228, %broadcast.splat101
  %241 = shl <4 x i64> %237, %broadcast.splat103
  %242 = shl <4 x i64> %238, %broadcast.splat103
  %243 = shl <4 x i64> %239, %broadcast.splat103
  %244 = shl <4 x i64> %240, %broadcast.splat103
  %245 = or <4 x i64> %241, %233
  %246 = or <4 x i64> %242, %234
  %247 = or <4 x i64> %243, %235
  %248 = or <4 x i64> %244, %236
  %249 = getelementptr i64, ptr %arg.law.0.4, <4 x i64> %245
  %250 = getelementptr i64, ptr %arg.law.0.4, <4 x i64> %246
  %251 = getelementptr i64, ptr %arg.law.0.4, <4 x i64> %247
  %252 = getelementptr i64, ptr %arg.law.0.4, <4 x i64> %248
  %wide.masked.gather = tail call <4 x i64> @llvm.masked.gather.v4i64.v4p0(<4 x ptr> align 8 %249, <4 x i1> splat (i1 true), <4 x i64> poison), !alias.scope !3
  %wide.masked.gather126 = tail call <4 x i64> @llvm.masked.gather.v4i64.v4p0(<4 x ptr> align 8 %250, <4 x i1> splat (i1 true), <4 x i64> poison), !alias.scope !3
  %wide.masked.gather127 = tail call <4 x i64> @llvm.masked.gather.v4i64.v4p0(<4 x ptr> align 8 %251, <4 x i1> splat (i1 true), <4 x i64> poison), !alias.scope !3
  %wide.masked.gather128 = tail call <4 x i64> @llvm.masked.gather.v4i64.v4p0(<4 x ptr> align 8 %252, <4 x i1> splat (i1 true), <4 x i64> poison), !alias.scope !3
  %253 = and <4 x i64> %wide.load122, %broadcast.splat105
  %254 = and <4 x i64> %wide.load123, %broadcast.splat105
  %255 = and <4 x i64> %wide.load124, %broadcast.splat105
  %256 = and <4 x i64> %wide.load125, %broadcast.splat105
  %257 = lshr <4 x i64> %wide.masked.gather, splat (i64 16)
  %258 = lshr <4 x i64> %wide.masked.gather126, splat (i64 16)
  %259 = lshr <4 x i64> %wide.masked.gather127, splat (i64 16)
  %260 = lshr <4 x i64> %wide.masked.gather128, splat (i64 16)
  %261 = icmp samesign ult <4 x i64> %253, %257
  %262 = icmp samesign ult <4 x i64> %254, %258
  %263 = icmp samesign ult <4 x i64> %255, %259
  %264 = icmp samesign ult <4 x i64> %256, %260
  %265 = and <4 x i64> %wide.masked.gather, splat (i64 65535)
  %266 = and <4 x i64> %wide.masked.gather126, splat (i64 65535)
  %267 = and <4 x i64> %wide.masked.gather127, splat (i64 65535)
  %268 = and <4 x i64> %wide.masked.gather128, splat (i64 65535)
  %269 = select <4 x i1> %261, <4 x i64> %233, <4 x i64> %265
  %270 = select <4 x i1> %262, <4 x i64> %234, <4 x i64> %266
  %271 = select <4 x i1> %263, <4 x i64> %235, <4 x i64> %267
  %272 = select <4 x i1> %264, <4 x i64> %236, <4 x i64> %268
  %273 = and <4 x i64> %225, %broadcast.splat107
  %274 = and <4 x i64> %226, %broadcast.splat107
  %275 = and <4 x i64> %227, %broadcast.splat107
  %276 = and <4 x i64> %228, %broadcast.splat107
  %277 = add nuw <4 x i64> %273, %269
  %278 = add nuw <4 x i64> %274, %270
  %279 = add nuw <4 x i64> %275, %271
  %280 = add nuw <4 x i64> %276, %272
  %281 = icmp ult <4 x i64> %277, %broadcast.splat109
  %282 = icmp ult <4 x i64> %278, %broadcast.splat109
  %283 = icmp ult <4 x i64> %279, %broadcast.splat109
  %284 = icmp ult <4 x i64> %280, %broadcast.splat109
  %285 = select <4 x i1> %281, <4 x i64> zeroinitializer, <4 x i64> %broadcast.splat109
  %286 = select <4 x i1> %282, <4 x i64> zeroinitializer, <4 x i64> %broadcast.splat109
  %287 = select <4 x i1> %283, <4 x i64> zeroinitializer, <4 x i64> %broadcast.splat109
  %288 = select <4 x i1> %284, <4 x i64> zeroinitializer, <4 x i64> %broadcast.splat109
  %sunkaddr338 = getelementptr i8, ptr %arg.out.4, i64 %index113
  %sunkaddr339 = getelementptr i8, ptr %sunkaddr338, i64 12
  %sunkaddr333 = getelementptr i8, ptr %arg.out.4, i64 %index113
  %wide.load129 = load <4 x i8>, ptr %sunkaddr333, align 1, !alias.scope !21, !noalias !23
  %sunkaddr334 = getelementptr i8, ptr %arg.out.4, i64 %index113
  %sunkaddr335 = getelementptr i8, ptr %sunkaddr334, i64 4
  %wide.load130 = load <4 x i8>, ptr %sunkaddr335, align 1, !alias.scope !21, !noalias !23
  %sunkaddr336 = getelementptr i8, ptr %arg.out.4, i64 %index113
  %sunkaddr337 = getelementptr i8, ptr %sunkaddr336, i64 8
  %wide.load131 = load <4 x i8>, ptr %sunkaddr337, align 1, !alias.scope !21, !noalias !23
  %wide.load132 = load <4 x i8>, ptr %sunkaddr339, align 1, !alias.scope !21, !noalias !23
  %289 = zext <4 x i8> %wide.load129 to <4 x i64>
  %290 = zext <4 x i8> %wide.load130 to <4 x i64>
  %291 = zext <4 x i8> %wide.load131 to <4 x i64>
  %292 = zext <4 x i8> %wide.load132 to <4 x i64>
  %293 = and <4 x i64> %broadcast.splat111, %289
  %294 = and <4 x i64> %broadcast.splat111, %290
  %295 = and <4 x i64> %broadcast.splat111, %291
  %296 = and <4 x i64> %broadcast.splat111, %292
  %297 = add nuw <4 x i64> %277, %293
  %298 = add nuw <4 x i64> %278, %294
  %299 = add nuw <4 x i64> %279, %295
  %300 = add nuw <4 x i64> %280, %296
  %301 = sub <4 x i64> %297, %285
  %302 = sub <4 x i64> %298, %286
  %303 = sub <4 x i64> %299, %287
  %304 = sub <4 x i64> %300, %288
  %305 = trunc <4 x i64> %301 to <4 x i8>
  %306 = trunc <4 x i64> %302 to <4 x i8>
  %307 = trunc <4 x i64> %303 to <4 x i8>
  %308 = trunc <4 x i64> %304 to <4 x i8>
  store <4 x i8> %305, ptr %sunkaddr333, align 1, !alias.scope !21, !noalias !23
  store <4 x i8> %306, ptr %sunkaddr335, align 1, !alias.scope !21, !noalias !23
  store <4 x i8> %307, ptr %sunkaddr337, align 1, !alias.scope !21, !noalias !23
  store <4 x i8> %308, ptr %sunkaddr339, align 1, !alias.scope !21, !noalias !23
  %index.next133 = add nuw i64 %index113, 16
  %309 = icmp eq i64 %n.vec83, %index.next133
  br i1 %309, label %middle.block134, label %vector.body112, !llvm.loop !24

middle.block134:                                  ; preds = %vector.body112
  %bin.rdx135 = or <4 x i64> %190, %189
  %bin.rdx136 = or <4 x i64> %191, %bin.rdx135
  %bin.rdx137 = or <4 x i64> %192, %bin.rdx136
  %rdx.shuf275 = shufflevector <4 x i64> %bin.rdx137, <4 x i64> poison, <4 x i32> <i32 2, i32 3, i32 poison, i32 poison>
  %bin.rdx276 = or <4 x i64> %bin.rdx137, %rdx.shuf275
  %rdx.shuf277 = shufflevector <4 x i64> %bin.rdx276, <4 x i64> poison, <4 x i32> <i32 1, i32 poison, i32 poison, i32 poison>
  %bin.rdx278 = or <4 x i64> %bin.rdx276, %rdx.shuf277
  %310 = extractelement <4 x i64> %bin.rdx278, i32 0
  %cmp.n138 = icmp eq i64 %arg.x.5.0, %n.vec83
  br i1 %cmp.n138, label %B1743, label %vec.epilog.iter.check142

vec.epilog.iter.check142:                         ; preds = %middle.block134
  %311 = and i64 %arg.x.5.0, 12
  %min.epilog.iters.check143 = icmp eq i64 %311, 0
  br i1 %min.epilog.iters.check143, label %B892.endif.preheader, label %vec.epilog.ph144, !prof !14

vec.epilog.ph144:                                 ; preds = %vector.main.loop.iter.check80, %vec.epilog.iter.check142
  %vec.epilog.resume.val139 = phi i64 [ %n.vec83, %vec.epilog.iter.check142 ], [ 0, %vector.main.loop.iter.check80 ]
  %bc.merge.rdx140 = phi i64 [ %310, %vec.epilog.iter.check142 ], [ 0, %vector.main.loop.iter.check80 ]
  %const_mat267 = add i64 %const266, 12
  %n.vec146 = and i64 %arg.x.5.0, %const_mat267
  %312 = insertelement <4 x i64> <i64 poison, i64 0, i64 0, i64 0>, i64 %bc.merge.rdx140, i64 0
  %broadcast.splatinsert147 = insertelement <4 x double> poison, double %.375, i64 0
  %broadcast.splat148 = shufflevector <4 x double> %broadcast.splatinsert147, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert149 = insertelement <4 x double> poison, double %arg.law.8, i64 0
  %broadcast.splat150 = shufflevector <4 x double> %broadcast.splatinsert149, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert151 = insertelement <4 x double> poison, double %arg.law.9, i64 0
  %broadcast.splat152 = shufflevector <4 x double> %broadcast.splatinsert151, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert153 = insertelement <4 x double> poison, double %arg.law.10, i64 0
  %broadcast.splat154 = shufflevector <4 x double> %broadcast.splatinsert153, <4 x double> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert155 = insertelement <4 x i64> poison, i64 %arg.law.6, i64 0
  %broadcast.splat156 = shufflevector <4 x i64> %broadcast.splatinsert155, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert157 = insertelement <4 x i64> poison, i64 %arg.law.7, i64 0
  %broadcast.splat158 = shufflevector <4 x i64> %broadcast.splatinsert157, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert159 = insertelement <4 x i64> poison, i64 %.156, i64 0
  %broadcast.splat160 = shufflevector <4 x i64> %broadcast.splatinsert159, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert161 = insertelement <4 x i64> poison, i64 %.168, i64 0
  %broadcast.splat162 = shufflevector <4 x i64> %broadcast.splatinsert161, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert163 = insertelement <4 x i64> poison, i64 %arg.law.2, i64 0
  %broadcast.splat164 = shufflevector <4 x i64> %broadcast.splatinsert163, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert165 = insertelement <4 x i64> poison, i64 %arg.law.1, i64 0
  %broadcast.splat166 = shufflevector <4 x i64> %broadcast.splatinsert165, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert167 = insertelement <4 x i64> poison, i64 %.162, i64 0
  %broadcast.splat168 = shufflevector <4 x i64> %broadcast.splatinsert167, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert169 = insertelement <4 x i64> poison, i64 %arg.law.3, i64 0
  %broadcast.splat170 = shufflevector <4 x i64> %broadcast.splatinsert169, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert171 = insertelement <4 x i64> poison, i64 %arg.law.4, i64 0
  %broadcast.splat172 = shufflevector <4 x i64> %broadcast.splatinsert171, <4 x i64> poison, <4 x i32> zeroinitializer
  %broadcast.splatinsert173 = insertelement <4 x i64> poison, i64 %arg.keep, i64 0
  %broadcast.splat174 = shufflevector <4 x i64> %broadcast.splatinsert173, <4 x i64> poison, <4 x i32> zeroinitializer
  br label %vec.epilog.vector.body175

vec.epilog.vector.body175:                        ; preds = %vec.epilog.vector.body175, %vec.epilog.ph144
  %index176 = phi i64 [ %vec.epilog.resume.val139, %vec.epilog.ph144 ], [ %index.next182, %vec.epilog.vector.body175 ]
  %vec.phi177 = phi <4 x i64> [ %312, %vec.epilog.ph144 ], [ %324, %vec.epilog.vector.body175 ]
  %313 = shl i64 %index176, 2
  %scevgep209 = getelementptr i8, ptr %arg.x.4, i64 %313
  %wide.load178 = load <4 x float>, ptr %scevgep209, align 4, !alias.scope !16, !noalias !3
  %314 = fpext <4 x float> %wide.load178 to <4 x double>
  %315 = fcmp olt <4 x double> %broadcast.splat148, %314
  %316 = select <4 x i1> %315, <4 x double> %314, <4 x double> %broadcast.splat148
  %317 = fcmp olt <4 x double> %316, %broadcast.splat150
  %318 = select <4 x i1> %317, <4 x double> %316, <4 x double> %broadcast.splat150
  %319 = fmul <4 x double> %broadcast.splat152, %318
  %320 = fadd <4 x double> %broadcast.splat154, %319
  %321 = bitcast <4 x double> %320 to <4 x i64>
  %322 = call <4 x i1> @llvm.is.fpclass.v4f64(<4 x double> %314, i32 519)
  %323 = zext <4 x i1> %322 to <4 x i64>
  %324 = or <4 x i64> %vec.phi177, %323
  %325 = and <4 x i64> %321, splat (i64 2251799813685247)
  %326 = tail call <4 x i64> @llvm.umax.v4i64(<4 x i64> %325, <4 x i64> %broadcast.splat156)
  %327 = tail call <4 x i64> @llvm.umin.v4i64(<4 x i64> %326, <4 x i64> %broadcast.splat158)
  %328 = shl i64 %index176, 3
  %scevgep208 = getelementptr i8, ptr %arg.words.4, i64 %328
  %wide.load179 = load <4 x i64>, ptr %scevgep208, align 8, !alias.scope !19, !noalias !3
  %329 = lshr <4 x i64> %327, splat (i64 24)
  %330 = lshr <4 x i64> %wide.load179, splat (i64 40)
  %331 = and <4 x i64> %327, splat (i64 16777215)
  %332 = icmp samesign ult <4 x i64> %330, %331
  %333 = zext <4 x i1> %332 to <4 x i64>
  %334 = add nuw nsw <4 x i64> %329, %333
  %335 = lshr <4 x i64> %wide.load179, %broadcast.splat160
  %336 = and <4 x i64> %335, %broadcast.splat162
  %337 = and <4 x i64> %334, %broadcast.splat164
  %338 = shl <4 x i64> %337, %broadcast.splat166
  %339 = or <4 x i64> %338, %336
  %340 = getelementptr i64, ptr %arg.law.0.4, <4 x i64> %339
  %wide.masked.gather180 = tail call <4 x i64> @llvm.masked.gather.v4i64.v4p0(<4 x ptr> align 8 %340, <4 x i1> splat (i1 true), <4 x i64> poison), !alias.scope !3
  %341 = and <4 x i64> %wide.load179, %broadcast.splat168
  %342 = lshr <4 x i64> %wide.masked.gather180, splat (i64 16)
  %343 = icmp samesign ult <4 x i64> %341, %342
  %344 = and <4 x i64> %wide.masked.gather180, splat (i64 65535)
  %345 = select <4 x i1> %343, <4 x i64> %336, <4 x i64> %344
  %346 = and <4 x i64> %334, %broadcast.splat170
  %347 = add nuw <4 x i64> %346, %345
  %348 = icmp ult <4 x i64> %347, %broadcast.splat172
  %349 = select <4 x i1> %348, <4 x i64> zeroinitializer, <4 x i64> %broadcast.splat172
  %350 = getelementptr i8, ptr %arg.out.4, i64 %index176
  %wide.load181 = load <4 x i8>, ptr %350, align 1, !alias.scope !21, !noalias !23
  %351 = zext <4 x i8> %wide.load181 to <4 x i64>
  %352 = and <4 x i64> %broadcast.splat174, %351
  %353 = add nuw <4 x i64> %347, %352
  %354 = sub <4 x i64> %353, %349
  %355 = trunc <4 x i64> %354 to <4 x i8>
  store <4 x i8> %355, ptr %350, align 1, !alias.scope !21, !noalias !23
  %index.next182 = add nuw i64 %index176, 4
  %356 = icmp eq i64 %n.vec146, %index.next182
  br i1 %356, label %vec.epilog.middle.block183, label %vec.epilog.vector.body175, !llvm.loop !25

vec.epilog.middle.block183:                       ; preds = %vec.epilog.vector.body175
  %rdx.shuf279 = shufflevector <4 x i64> %324, <4 x i64> poison, <4 x i32> <i32 2, i32 3, i32 poison, i32 poison>
  %bin.rdx280 = or <4 x i64> %324, %rdx.shuf279
  %rdx.shuf281 = shufflevector <4 x i64> %bin.rdx280, <4 x i64> poison, <4 x i32> <i32 1, i32 poison, i32 poison, i32 poison>
  %bin.rdx282 = or <4 x i64> %bin.rdx280, %rdx.shuf281
  %357 = extractelement <4 x i64> %bin.rdx282, i32 0
  %cmp.n184 = icmp eq i64 %arg.x.5.0, %n.vec146
  br i1 %cmp.n184, label %B1743, label %B892.endif.preheader

B892.endif.preheader:                             ; preds = %vector.memcheck65, %iter.check78, %vec.epilog.iter.check142, %vec.epilog.middle.block183
  %bad.3.0443.ph = phi i64 [ 0, %iter.check78 ], [ 0, %vector.memcheck65 ], [ %310, %vec.epilog.iter.check142 ], [ %357, %vec.epilog.middle.block183 ]
  %.269438441.ph = phi i64 [ 0, %iter.check78 ], [ 0, %vector.memcheck65 ], [ %n.vec83, %vec.epilog.iter.check142 ], [ %n.vec146, %vec.epilog.middle.block183 ]
  br label %B892.endif

B892.endif:                                       ; preds = %B892.endif.preheader, %B892.endif
  %bad.3.0443 = phi i64 [ %.344, %B892.endif ], [ %bad.3.0443.ph, %B892.endif.preheader ]
  %.269438441 = phi i64 [ %.276, %B892.endif ], [ %.269438441.ph, %B892.endif.preheader ]
  %.276 = add nuw nsw i64 %.269438441, 1
  %358 = shl i64 %.269438441, 2
  %scevgep207 = getelementptr i8, ptr %arg.x.4, i64 %358
  %.313 = load float, ptr %scevgep207, align 4, !noalias !3
  %.314 = fpext float %.313 to double
  %.377 = fcmp ogt double %.314, %.375
  %_place_v3__vphi26_0.2.1 = select i1 %.377, double %.314, double %.375
  %.401 = fcmp olt double %_place_v3__vphi26_0.2.1, %arg.law.8
  %_place_v3__vphi46_0.2.1 = select i1 %.401, double %_place_v3__vphi26_0.2.1, double %arg.law.8
  %.424 = fmul double %arg.law.9, %_place_v3__vphi46_0.2.1
  %.428 = fadd double %arg.law.10, %.424
  %359 = bitcast double %.428 to i64
  %360 = call i1 @llvm.is.fpclass.f64(double %.314, i32 519)
  %.342 = zext i1 %360 to i64
  %.344 = or i64 %bad.3.0443, %.342
  %.455 = and i64 %359, 2251799813685247
  %_place_v3__vphi196_0.2.1 = tail call i64 @llvm.umax.i64(i64 %.455, i64 %arg.law.6)
  %_place_v3__vphi216_0.2.1 = tail call i64 @llvm.umin.i64(i64 %_place_v3__vphi196_0.2.1, i64 %arg.law.7)
  %361 = shl i64 %.269438441, 3
  %scevgep206 = getelementptr i8, ptr %arg.words.4, i64 %361
  %.519 = load i64, ptr %scevgep206, align 8, !noalias !3
  %.520 = lshr i64 %_place_v3__vphi216_0.2.1, 24
  %.521 = lshr i64 %.519, 40
  %.522 = and i64 %_place_v3__vphi216_0.2.1, 16777215
  %.523 = icmp samesign ult i64 %.521, %.522
  %.525 = zext i1 %.523 to i64
  %.526 = add nuw nsw i64 %.520, %.525
  %.531 = lshr i64 %.519, %.156
  %.533 = and i64 %.531, %.168
  %.539 = and i64 %.526, %arg.law.2
  %.541 = shl i64 %.539, %arg.law.1
  %.543 = or i64 %.541, %.533
  %.551 = getelementptr i64, ptr %arg.law.0.4, i64 %.543
  %.552 = load i64, ptr %.551, align 8, !alias.scope !3
  %.557 = and i64 %.519, %.162
  %.559 = lshr i64 %.552, 16
  %.560 = icmp samesign ult i64 %.557, %.559
  %.574 = and i64 %.552, 65535
  %"$phi828.1.2.1" = select i1 %.560, i64 %.533, i64 %.574
  %.585 = and i64 %.526, %arg.law.3
  %.588 = add nuw i64 %.585, %"$phi828.1.2.1"
  %.590.not = icmp ult i64 %.588, %arg.law.4
  %"$phi892.2.2.1" = select i1 %.590.not, i64 0, i64 %arg.law.4
  %.623 = getelementptr i8, ptr %arg.out.4, i64 %.269438441
  %.624 = load i8, ptr %.623, align 1, !noalias !3
  %.625 = zext i8 %.624 to i64
  %.627 = and i64 %arg.keep, %.625
  %.610 = add nuw i64 %.588, %.627
  %.628 = sub i64 %.610, %"$phi892.2.2.1"
  %.638 = trunc i64 %.628 to i8
  store i8 %.638, ptr %.623, align 1, !noalias !3
  %exitcond453.not = icmp eq i64 %arg.x.5.0, %.276
  br i1 %exitcond453.not, label %B1743, label %B892.endif, !llvm.loop !26

B1962.endif:                                      ; preds = %B1962.endif.preheader205, %B1962.endif
  %bad.4.1433 = phi i64 [ %.917.1, %B1962.endif ], [ %bad.4.1433.unr, %B1962.endif.preheader205 ]
  %.840428431 = phi i64 [ %.847.1, %B1962.endif ], [ %.840428431.unr, %B1962.endif.preheader205 ]
  %362 = icmp ult i64 %.717, %arg.law.5
  %sunkaddr340 = mul i64 %.840428431, 4
  %sunkaddr341 = getelementptr i8, ptr %arg.x.4, i64 %sunkaddr340
  %.886 = load float, ptr %sunkaddr341, align 4, !noalias !3
  %.887 = fpext float %.886 to double
  %.950 = fcmp ogt double %.887, %.948
  %_place_v2__vphi26_0.2.1 = select i1 %.950, double %.887, double %.948
  %.974 = fcmp olt double %_place_v2__vphi26_0.2.1, %arg.law.8
  %_place_v2__vphi46_0.2.1 = select i1 %.974, double %_place_v2__vphi26_0.2.1, double %arg.law.8
  %.997 = fmul double %arg.law.9, %_place_v2__vphi46_0.2.1
  %.1001 = fadd double %arg.law.10, %.997
  %363 = bitcast double %.1001 to i64
  %364 = call i1 @llvm.is.fpclass.f64(double %.887, i32 519)
  %.915 = zext i1 %364 to i64
  %.917 = or i64 %bad.4.1433, %.915
  %.1028 = and i64 %363, 2251799813685247
  %_place_v2__vphi196_0.2.1 = tail call i64 @llvm.umax.i64(i64 %.1028, i64 %arg.law.6)
  %_place_v2__vphi216_0.2.1 = tail call i64 @llvm.umin.i64(i64 %_place_v2__vphi196_0.2.1, i64 %arg.law.7)
  %sunkaddr342 = mul i64 %.840428431, 8
  %sunkaddr343 = getelementptr i8, ptr %arg.words.4, i64 %sunkaddr342
  %.1097 = load i64, ptr %sunkaddr343, align 8, !noalias !3
  %.1098 = lshr i64 %.1097, 40
  %.1099 = icmp ult i64 %.1098, %_place_v2__vphi216_0.2.1
  %.1101 = zext i1 %.1099 to i64
  %.1102 = and i64 %.1097, 16777215
  %.1105416 = icmp ugt i64 %_place_v2__vphi216_0.2.1, %.1102
  %.1105 = select i1 %362, i1 %.1105416, i1 false
  %.1107 = zext i1 %.1105 to i64
  %sunkaddr344 = getelementptr i8, ptr %arg.out.4, i64 %.840428431
  %.1118 = load i8, ptr %sunkaddr344, align 1, !noalias !3
  %.1119 = zext i8 %.1118 to i64
  %.1121 = and i64 %arg.keep, %.1119
  %.1108 = add nuw nsw i64 %.1121, %.1101
  %.1122 = add nuw nsw i64 %.1108, %.1107
  %.1132 = trunc i64 %.1122 to i8
  store i8 %.1132, ptr %sunkaddr344, align 1, !noalias !3
  %.847.1 = add nuw nsw i64 %.840428431, 2
  %sunkaddr345 = mul i64 %.840428431, 4
  %sunkaddr346 = getelementptr i8, ptr %arg.x.4, i64 %sunkaddr345
  %sunkaddr347 = getelementptr i8, ptr %sunkaddr346, i64 4
  %.886.1 = load float, ptr %sunkaddr347, align 4, !noalias !3
  %.887.1 = fpext float %.886.1 to double
  %.950.1 = fcmp ogt double %.887.1, %.948
  %_place_v2__vphi26_0.2.1.1 = select i1 %.950.1, double %.887.1, double %.948
  %.974.1 = fcmp olt double %_place_v2__vphi26_0.2.1.1, %arg.law.8
  %_place_v2__vphi46_0.2.1.1 = select i1 %.974.1, double %_place_v2__vphi26_0.2.1.1, double %arg.law.8
  %.997.1 = fmul double %arg.law.9, %_place_v2__vphi46_0.2.1.1
  %.1001.1 = fadd double %arg.law.10, %.997.1
  %365 = bitcast double %.1001.1 to i64
  %366 = call i1 @llvm.is.fpclass.f64(double %.887.1, i32 519)
  %.915.1 = zext i1 %366 to i64
  %.917.1 = or i64 %.917, %.915.1
  %.1028.1 = and i64 %365, 2251799813685247
  %_place_v2__vphi196_0.2.1.1 = tail call i64 @llvm.umax.i64(i64 %.1028.1, i64 %arg.law.6)
  %_place_v2__vphi216_0.2.1.1 = tail call i64 @llvm.umin.i64(i64 %_place_v2__vphi196_0.2.1.1, i64 %arg.law.7)
  %sunkaddr348 = mul i64 %.840428431, 8
  %sunkaddr349 = getelementptr i8, ptr %arg.words.4, i64 %sunkaddr348
  %sunkaddr350 = getelementptr i8, ptr %sunkaddr349, i64 8
  %.1097.1 = load i64, ptr %sunkaddr350, align 8, !noalias !3
  %.1098.1 = lshr i64 %.1097.1, 40
  %.1099.1 = icmp ult i64 %.1098.1, %_place_v2__vphi216_0.2.1.1
  %.1101.1 = zext i1 %.1099.1 to i64
  %.1102.1 = and i64 %.1097.1, 16777215
  %.1105416.1 = icmp ugt i64 %_place_v2__vphi216_0.2.1.1, %.1102.1
  %.1105.1 = select i1 %362, i1 %.1105416.1, i1 false
  %.1107.1 = zext i1 %.1105.1 to i64
  %sunkaddr351 = getelementptr i8, ptr %arg.out.4, i64 %.840428431
  %sunkaddr352 = getelementptr i8, ptr %sunkaddr351, i64 1
  %.1118.1 = load i8, ptr %sunkaddr352, align 1, !noalias !3
  %.1119.1 = zext i8 %.1118.1 to i64
  %.1121.1 = and i64 %arg.keep, %.1119.1
  %.1108.1 = add nuw nsw i64 %.1121.1, %.1101.1
  %.1122.1 = add nuw nsw i64 %.1108.1, %.1107.1
  %.1132.1 = trunc i64 %.1122.1 to i8
  store i8 %.1132.1, ptr %sunkaddr352, align 1, !noalias !3
  %exitcond.not.1 = icmp eq i64 %arg.x.5.0, %.847.1
  br i1 %exitcond.not.1, label %common.ret, label %B1962.endif, !llvm.loop !27
}

; Function Attrs: mustprogress nocallback nocreateundeforpoison nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.umax.i64(i64, i64) #0

; Function Attrs: mustprogress nocallback nocreateundeforpoison nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.umin.i64(i64, i64) #0

define ptr @_ZN7cpython3rqm7kernels3cpu4drawB2v1B56c8tJTIeFIjxB2IKSgI4CrvSCKg1MMbCQQPKkLTj8gMFYBFOOlH7AIpoAE5ArrayIfLi1E1C7mutable7alignedE5ArrayIyLi1E1C7mutable7alignedE5ArrayIhLi1E1C7mutable7alignedE164Law_28array_28uint64_2c_201d_2c_20C_29_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20float64_2c_20float64_2c_20float64_29yy(ptr readnone captures(none) %py_closure, ptr %py_args, ptr readnone captures(none) %py_kws) local_unnamed_addr {
entry:
  %.5 = alloca ptr, align 8
  %.6 = alloca ptr, align 8
  %.7 = alloca ptr, align 8
  %.8 = alloca ptr, align 8
  %.9 = alloca ptr, align 8
  %.10 = alloca ptr, align 8
  %.11 = call i32 (ptr, ptr, i64, i64, ...) @PyArg_UnpackTuple(ptr %py_args, ptr nonnull @.const.draw, i64 6, i64 6, ptr nonnull %.5, ptr nonnull %.6, ptr nonnull %.7, ptr nonnull %.8, ptr nonnull %.9, ptr nonnull %.10)
  %.12 = icmp eq i32 %.11, 0
  %.24 = alloca { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, align 8
  %.47 = alloca { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, align 8
  %.70 = alloca { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, align 8
  %.106 = alloca { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, align 8
  %.317 = alloca i64, align 8
  store i64 0, ptr %.317, align 8
  br i1 %.12, label %common.ret, label %entry.endif, !prof !28

common.ret:                                       ; preds = %entry.endif.endif.endif.thread, %entry.endif.endif.endif.e...endif.6.endif.endif, %entry.endif.endif.endif.e...endif.6.endif.endif.if, %entry.endif.endif.endif.e...endif.7, %arg0.err, %entry, %entry.endif.endif.endif.e...endif.6.if.endif, %entry.endif.if
  %common.ret.op = phi ptr [ null, %entry.endif.endif.endif.e...endif.7 ], [ null, %entry ], [ null, %entry.endif.if ], [ null, %entry.endif.endif.endif.e...endif.6.endif.endif.if ], [ %.359, %entry.endif.endif.endif.e...endif.6.if.endif ], [ null, %arg0.err ], [ null, %entry.endif.endif.endif.thread ], [ null, %entry.endif.endif.endif.e...endif.6.endif.endif ]
  ret ptr %common.ret.op

entry.endif:                                      ; preds = %entry
  %.16 = load ptr, ptr @_ZN08NumbaEnv3rqm7kernels3cpu4drawB2v1B56c8tJTIeFIjxB2IKSgI4CrvSCKg1MMbCQQPKkLTj8gMFYBFOOlH7AIpoAE5ArrayIfLi1E1C7mutable7alignedE5ArrayIyLi1E1C7mutable7alignedE5ArrayIhLi1E1C7mutable7alignedE164Law_28array_28uint64_2c_201d_2c_20C_29_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20float64_2c_20float64_2c_20float64_29yy, align 8
  %.19 = icmp eq ptr %.16, null
  br i1 %.19, label %entry.endif.if, label %entry.endif.endif, !prof !28

entry.endif.if:                                   ; preds = %entry.endif
  call void @PyErr_SetString(ptr nonnull @PyExc_RuntimeError, ptr nonnull @".const.missing Environment: _ZN08NumbaEnv3rqm7kernels3cpu4drawB2v1B56c8tJTIeFIjxB2IKSgI4CrvSCKg1MMbCQQPKkLTj8gMFYBFOOlH7AIpoAE5ArrayIfLi1E1C7mutable7alignedE5ArrayIyLi1E1C7mutable7alignedE5ArrayIhLi1E1C7mutable7alignedE164Law_28array_28uint64_2c_201d_2c_20C_29_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20float64_2c_20float64_2c_20float64_29yy")
  br label %common.ret

entry.endif.endif:                                ; preds = %entry.endif
  %.23 = load ptr, ptr %.5, align 8
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(56) %.24, i8 0, i64 56, i1 false)
  %.28 = call i32 @NRT_adapt_ndarray_from_python(ptr %.23, ptr nonnull %.24)
  %sunkaddr = getelementptr inbounds i8, ptr %.24, i64 24
  %.32 = load i64, ptr %sunkaddr, align 8
  %.33 = icmp ne i64 %.32, 4
  %.34 = icmp ne i32 %.28, 0
  %.35 = or i1 %.34, %.33
  br i1 %.35, label %entry.endif.endif.endif.thread, label %entry.endif.endif.endif.endif, !prof !28

entry.endif.endif.endif.thread:                   ; preds = %entry.endif.endif
  call void @PyErr_SetString(ptr nonnull @PyExc_TypeError, ptr nonnull @".const.can't unbox array from PyObject into native value.  The object maybe of a different type")
  br label %common.ret

entry.endif.endif.endif.endif:                    ; preds = %entry.endif.endif
  %.39.fca.0.load = load ptr, ptr %.24, align 8
  %sunkaddr1 = getelementptr inbounds i8, ptr %.24, i64 32
  %.39.fca.4.load = load ptr, ptr %sunkaddr1, align 8
  %sunkaddr2 = getelementptr inbounds i8, ptr %.24, i64 40
  %.39.fca.5.0.load = load i64, ptr %sunkaddr2, align 8
  %.46 = load ptr, ptr %.6, align 8
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(56) %.47, i8 0, i64 56, i1 false)
  %.51 = call i32 @NRT_adapt_ndarray_from_python(ptr %.46, ptr nonnull %.47)
  %sunkaddr3 = getelementptr inbounds i8, ptr %.47, i64 24
  %.55 = load i64, ptr %sunkaddr3, align 8
  %.56 = icmp ne i64 %.55, 8
  %.57 = icmp ne i32 %.51, 0
  %.58 = or i1 %.57, %.56
  br i1 %.58, label %entry.endif.endif.endif.endif.endif.thread, label %entry.endif.endif.endif.endif.endif.endif, !prof !28

arg0.err:                                         ; preds = %entry.endif.endif.endif.endif.endif.thread, %arg1.err
  call void @NRT_decref(ptr %.39.fca.0.load)
  br label %common.ret

entry.endif.endif.endif.endif.endif.thread:       ; preds = %entry.endif.endif.endif.endif
  call void @PyErr_SetString(ptr nonnull @PyExc_TypeError, ptr nonnull @".const.can't unbox array from PyObject into native value.  The object maybe of a different type")
  br label %arg0.err

entry.endif.endif.endif.endif.endif.endif:        ; preds = %entry.endif.endif.endif.endif
  %.62.fca.0.load = load ptr, ptr %.47, align 8
  %sunkaddr4 = getelementptr inbounds i8, ptr %.47, i64 32
  %.62.fca.4.load = load ptr, ptr %sunkaddr4, align 8
  %.69 = load ptr, ptr %.7, align 8
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(56) %.70, i8 0, i64 56, i1 false)
  %.74 = call i32 @NRT_adapt_ndarray_from_python(ptr %.69, ptr nonnull %.70)
  %sunkaddr5 = getelementptr inbounds i8, ptr %.70, i64 24
  %.78 = load i64, ptr %sunkaddr5, align 8
  %.79 = icmp ne i64 %.78, 1
  %.80 = icmp ne i32 %.74, 0
  %.81 = or i1 %.80, %.79
  br i1 %.81, label %entry.endif.endif.endif.endif.endif.endif.endif.thread, label %entry.endif.endif.endif.endif.endif.endif.endif.endif, !prof !28

arg1.err:                                         ; preds = %entry.endif.endif.endif.endif.endif.endif.endif.thread, %arg2.err
  call void @NRT_decref(ptr %.62.fca.0.load)
  br label %arg0.err

entry.endif.endif.endif.endif.endif.endif.endif.thread: ; preds = %entry.endif.endif.endif.endif.endif.endif
  call void @PyErr_SetString(ptr nonnull @PyExc_TypeError, ptr nonnull @".const.can't unbox array from PyObject into native value.  The object maybe of a different type")
  br label %arg1.err

entry.endif.endif.endif.endif.endif.endif.endif.endif: ; preds = %entry.endif.endif.endif.endif.endif.endif
  %.85.fca.0.load = load ptr, ptr %.70, align 8
  %sunkaddr6 = getelementptr inbounds i8, ptr %.70, i64 32
  %.85.fca.4.load = load ptr, ptr %sunkaddr6, align 8
  %.92 = load ptr, ptr %.8, align 8
  %.98 = call i64 @PyTuple_Size(ptr %.92)
  %.99.not = icmp ne i64 %.98, 11
  br i1 %.99.not, label %entry.endif.endif.endif.e...if, label %entry.endif.endif.endif.e...endif, !prof !28

arg2.err:                                         ; preds = %entry.endif.endif.endif.e...endif.4.endif.endif, %arg3.err
  call void @NRT_decref(ptr %.85.fca.0.load)
  br label %arg1.err

entry.endif.endif.endif.e...if:                   ; preds = %entry.endif.endif.endif.endif.endif.endif.endif.endif
  call void (ptr, ptr, ...) @PyErr_Format(ptr nonnull @PyExc_ValueError, ptr nonnull @".const.size mismatch for tuple, expected 11 element(s) but got %zd", i64 %.98)
  br label %entry.endif.endif.endif.e...endif

entry.endif.endif.endif.e...endif:                ; preds = %entry.endif.endif.endif.e...if, %entry.endif.endif.endif.endif.endif.endif.endif.endif
  %.105 = call ptr @PyTuple_GetItem(ptr %.92, i64 0)
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(56) %.106, i8 0, i64 56, i1 false)
  %.110 = call i32 @NRT_adapt_ndarray_from_python(ptr %.105, ptr nonnull %.106)
  %sunkaddr7 = getelementptr inbounds i8, ptr %.106, i64 24
  %.114 = load i64, ptr %sunkaddr7, align 8
  %.115 = icmp ne i64 %.114, 8
  %.116 = icmp ne i32 %.110, 0
  %.117 = or i1 %.116, %.115
  br i1 %.117, label %entry.endif.endif.endif.e...endif.endif.if, label %entry.endif.endif.endif.e...endif.endif.endif, !prof !28

entry.endif.endif.endif.e...endif.endif.if:       ; preds = %entry.endif.endif.endif.e...endif
  call void @PyErr_SetString(ptr nonnull @PyExc_TypeError, ptr nonnull @".const.can't unbox array from PyObject into native value.  The object maybe of a different type")
  br label %entry.endif.endif.endif.e...endif.endif.endif

entry.endif.endif.endif.e...endif.endif.endif:    ; preds = %entry.endif.endif.endif.e...endif, %entry.endif.endif.endif.e...endif.endif.if
  %.93.1 = phi i1 [ true, %entry.endif.endif.endif.e...endif.endif.if ], [ %.99.not, %entry.endif.endif.endif.e...endif ]
  %.121.fca.0.load = load ptr, ptr %.106, align 8
  %sunkaddr8 = getelementptr inbounds i8, ptr %.106, i64 32
  %.121.fca.4.load = load ptr, ptr %sunkaddr8, align 8
  %.125 = call ptr @PyTuple_GetItem(ptr %.92, i64 1)
  %.128 = call ptr @PyNumber_Long(ptr %.125)
  %.129.not = icmp eq ptr %.128, null
  br i1 %.129.not, label %entry.endif.endif.endif.e...endif.endif.endif.endif, label %entry.endif.endif.endif.e...endif.endif.endif.if, !prof !28

entry.endif.endif.endif.e...endif.endif.endif.if: ; preds = %entry.endif.endif.endif.e...endif.endif.endif
  %.131 = call i64 @PyLong_AsUnsignedLongLong(ptr nonnull %.128)
  call void @Py_DecRef(ptr nonnull %.128)
  br label %entry.endif.endif.endif.e...endif.endif.endif.endif

entry.endif.endif.endif.e...endif.endif.endif.endif: ; preds = %entry.endif.endif.endif.e...endif.endif.endif.if, %entry.endif.endif.endif.e...endif.endif.endif
  %.126.0 = phi i64 [ %.131, %entry.endif.endif.endif.e...endif.endif.endif.if ], [ 0, %entry.endif.endif.endif.e...endif.endif.endif ]
  %.136 = call ptr @PyErr_Occurred()
  %.137.not = icmp eq ptr %.136, null
  br i1 %.137.not, label %entry.endif.endif.endif.e...endif.1, label %entry.endif.endif.endif.e...if.1, !prof !29

entry.endif.endif.endif.e...if.1:                 ; preds = %entry.endif.endif.endif.e...endif.endif.endif.endif
  br label %entry.endif.endif.endif.e...endif.1

entry.endif.endif.endif.e...endif.1:              ; preds = %entry.endif.endif.endif.e...if.1, %entry.endif.endif.endif.e...endif.endif.endif.endif
  %.93.2 = phi i1 [ true, %entry.endif.endif.endif.e...if.1 ], [ %.93.1, %entry.endif.endif.endif.e...endif.endif.endif.endif ]
  %.141 = call ptr @PyTuple_GetItem(ptr %.92, i64 2)
  %.144 = call ptr @PyNumber_Long(ptr %.141)
  %.145.not = icmp eq ptr %.144, null
  br i1 %.145.not, label %entry.endif.endif.endif.e...endif.1.endif, label %entry.endif.endif.endif.e...endif.1.if, !prof !28

entry.endif.endif.endif.e...endif.1.if:           ; preds = %entry.endif.endif.endif.e...endif.1
  %.147 = call i64 @PyLong_AsUnsignedLongLong(ptr nonnull %.144)
  call void @Py_DecRef(ptr nonnull %.144)
  br label %entry.endif.endif.endif.e...endif.1.endif

entry.endif.endif.endif.e...endif.1.endif:        ; preds = %entry.endif.endif.endif.e...endif.1.if, %entry.endif.endif.endif.e...endif.1
  %.142.0 = phi i64 [ %.147, %entry.endif.endif.endif.e...endif.1.if ], [ 0, %entry.endif.endif.endif.e...endif.1 ]
  %.152 = call ptr @PyErr_Occurred()
  %.153.not = icmp eq ptr %.152, null
  br i1 %.153.not, label %entry.endif.endif.endif.e...endif.1.endif.endif, label %entry.endif.endif.endif.e...endif.1.endif.if, !prof !29

entry.endif.endif.endif.e...endif.1.endif.if:     ; preds = %entry.endif.endif.endif.e...endif.1.endif
  br label %entry.endif.endif.endif.e...endif.1.endif.endif

entry.endif.endif.endif.e...endif.1.endif.endif:  ; preds = %entry.endif.endif.endif.e...endif.1.endif.if, %entry.endif.endif.endif.e...endif.1.endif
  %.93.3 = phi i1 [ true, %entry.endif.endif.endif.e...endif.1.endif.if ], [ %.93.2, %entry.endif.endif.endif.e...endif.1.endif ]
  %.157 = call ptr @PyTuple_GetItem(ptr %.92, i64 3)
  %.160 = call ptr @PyNumber_Long(ptr %.157)
  %.161.not = icmp eq ptr %.160, null
  br i1 %.161.not, label %entry.endif.endif.endif.e...endif.1.endif.endif.endif, label %entry.endif.endif.endif.e...endif.1.endif.endif.if, !prof !28

entry.endif.endif.endif.e...endif.1.endif.endif.if: ; preds = %entry.endif.endif.endif.e...endif.1.endif.endif
  %.163 = call i64 @PyLong_AsUnsignedLongLong(ptr nonnull %.160)
  call void @Py_DecRef(ptr nonnull %.160)
  br label %entry.endif.endif.endif.e...endif.1.endif.endif.endif

entry.endif.endif.endif.e...endif.1.endif.endif.endif: ; preds = %entry.endif.endif.endif.e...endif.1.endif.endif.if, %entry.endif.endif.endif.e...endif.1.endif.endif
  %.158.0 = phi i64 [ %.163, %entry.endif.endif.endif.e...endif.1.endif.endif.if ], [ 0, %entry.endif.endif.endif.e...endif.1.endif.endif ]
  %.168 = call ptr @PyErr_Occurred()
  %.169.not = icmp eq ptr %.168, null
  br i1 %.169.not, label %entry.endif.endif.endif.e...endif.2, label %entry.endif.endif.endif.e...if.2, !prof !29

entry.endif.endif.endif.e...if.2:                 ; preds = %entry.endif.endif.endif.e...endif.1.endif.endif.endif
  br label %entry.endif.endif.endif.e...endif.2

entry.endif.endif.endif.e...endif.2:              ; preds = %entry.endif.endif.endif.e...if.2, %entry.endif.endif.endif.e...endif.1.endif.endif.endif
  %.93.4 = phi i1 [ true, %entry.endif.endif.endif.e...if.2 ], [ %.93.3, %entry.endif.endif.endif.e...endif.1.endif.endif.endif ]
  %.173 = call ptr @PyTuple_GetItem(ptr %.92, i64 4)
  %.176 = call ptr @PyNumber_Long(ptr %.173)
  %.177.not = icmp eq ptr %.176, null
  br i1 %.177.not, label %entry.endif.endif.endif.e...endif.2.endif, label %entry.endif.endif.endif.e...endif.2.if, !prof !28

entry.endif.endif.endif.e...endif.2.if:           ; preds = %entry.endif.endif.endif.e...endif.2
  %.179 = call i64 @PyLong_AsUnsignedLongLong(ptr nonnull %.176)
  call void @Py_DecRef(ptr nonnull %.176)
  br label %entry.endif.endif.endif.e...endif.2.endif

entry.endif.endif.endif.e...endif.2.endif:        ; preds = %entry.endif.endif.endif.e...endif.2.if, %entry.endif.endif.endif.e...endif.2
  %.174.0 = phi i64 [ %.179, %entry.endif.endif.endif.e...endif.2.if ], [ 0, %entry.endif.endif.endif.e...endif.2 ]
  %.184 = call ptr @PyErr_Occurred()
  %.185.not = icmp eq ptr %.184, null
  br i1 %.185.not, label %entry.endif.endif.endif.e...endif.2.endif.endif, label %entry.endif.endif.endif.e...endif.2.endif.if, !prof !29

entry.endif.endif.endif.e...endif.2.endif.if:     ; preds = %entry.endif.endif.endif.e...endif.2.endif
  br label %entry.endif.endif.endif.e...endif.2.endif.endif

entry.endif.endif.endif.e...endif.2.endif.endif:  ; preds = %entry.endif.endif.endif.e...endif.2.endif.if, %entry.endif.endif.endif.e...endif.2.endif
  %.93.5 = phi i1 [ true, %entry.endif.endif.endif.e...endif.2.endif.if ], [ %.93.4, %entry.endif.endif.endif.e...endif.2.endif ]
  %.189 = call ptr @PyTuple_GetItem(ptr %.92, i64 5)
  %.192 = call ptr @PyNumber_Long(ptr %.189)
  %.193.not = icmp eq ptr %.192, null
  br i1 %.193.not, label %entry.endif.endif.endif.e...endif.2.endif.endif.endif, label %entry.endif.endif.endif.e...endif.2.endif.endif.if, !prof !28

entry.endif.endif.endif.e...endif.2.endif.endif.if: ; preds = %entry.endif.endif.endif.e...endif.2.endif.endif
  %.195 = call i64 @PyLong_AsUnsignedLongLong(ptr nonnull %.192)
  call void @Py_DecRef(ptr nonnull %.192)
  br label %entry.endif.endif.endif.e...endif.2.endif.endif.endif

entry.endif.endif.endif.e...endif.2.endif.endif.endif: ; preds = %entry.endif.endif.endif.e...endif.2.endif.endif.if, %entry.endif.endif.endif.e...endif.2.endif.endif
  %.190.0 = phi i64 [ %.195, %entry.endif.endif.endif.e...endif.2.endif.endif.if ], [ 0, %entry.endif.endif.endif.e...endif.2.endif.endif ]
  %.200 = call ptr @PyErr_Occurred()
  %.201.not = icmp eq ptr %.200, null
  br i1 %.201.not, label %entry.endif.endif.endif.e...endif.3, label %entry.endif.endif.endif.e...if.3, !prof !29

entry.endif.endif.endif.e...if.3:                 ; preds = %entry.endif.endif.endif.e...endif.2.endif.endif.endif
  br label %entry.endif.endif.endif.e...endif.3

entry.endif.endif.endif.e...endif.3:              ; preds = %entry.endif.endif.endif.e...if.3, %entry.endif.endif.endif.e...endif.2.endif.endif.endif
  %.93.6 = phi i1 [ true, %entry.endif.endif.endif.e...if.3 ], [ %.93.5, %entry.endif.endif.endif.e...endif.2.endif.endif.endif ]
  %.205 = call ptr @PyTuple_GetItem(ptr %.92, i64 6)
  %.208 = call ptr @PyNumber_Long(ptr %.205)
  %.209.not = icmp eq ptr %.208, null
  br i1 %.209.not, label %entry.endif.endif.endif.e...endif.3.endif, label %entry.endif.endif.endif.e...endif.3.if, !prof !28

entry.endif.endif.endif.e...endif.3.if:           ; preds = %entry.endif.endif.endif.e...endif.3
  %.211 = call i64 @PyLong_AsUnsignedLongLong(ptr nonnull %.208)
  call void @Py_DecRef(ptr nonnull %.208)
  br label %entry.endif.endif.endif.e...endif.3.endif

entry.endif.endif.endif.e...endif.3.endif:        ; preds = %entry.endif.endif.endif.e...endif.3.if, %entry.endif.endif.endif.e...endif.3
  %.206.0 = phi i64 [ %.211, %entry.endif.endif.endif.e...endif.3.if ], [ 0, %entry.endif.endif.endif.e...endif.3 ]
  %.216 = call ptr @PyErr_Occurred()
  %.217.not = icmp eq ptr %.216, null
  br i1 %.217.not, label %entry.endif.endif.endif.e...endif.3.endif.endif, label %entry.endif.endif.endif.e...endif.3.endif.if, !prof !29

entry.endif.endif.endif.e...endif.3.endif.if:     ; preds = %entry.endif.endif.endif.e...endif.3.endif
  br label %entry.endif.endif.endif.e...endif.3.endif.endif

entry.endif.endif.endif.e...endif.3.endif.endif:  ; preds = %entry.endif.endif.endif.e...endif.3.endif.if, %entry.endif.endif.endif.e...endif.3.endif
  %.93.7 = phi i1 [ true, %entry.endif.endif.endif.e...endif.3.endif.if ], [ %.93.6, %entry.endif.endif.endif.e...endif.3.endif ]
  %.221 = call ptr @PyTuple_GetItem(ptr %.92, i64 7)
  %.224 = call ptr @PyNumber_Long(ptr %.221)
  %.225.not = icmp eq ptr %.224, null
  br i1 %.225.not, label %entry.endif.endif.endif.e...endif.3.endif.endif.endif, label %entry.endif.endif.endif.e...endif.3.endif.endif.if, !prof !28

entry.endif.endif.endif.e...endif.3.endif.endif.if: ; preds = %entry.endif.endif.endif.e...endif.3.endif.endif
  %.227 = call i64 @PyLong_AsUnsignedLongLong(ptr nonnull %.224)
  call void @Py_DecRef(ptr nonnull %.224)
  br label %entry.endif.endif.endif.e...endif.3.endif.endif.endif

entry.endif.endif.endif.e...endif.3.endif.endif.endif: ; preds = %entry.endif.endif.endif.e...endif.3.endif.endif.if, %entry.endif.endif.endif.e...endif.3.endif.endif
  %.222.0 = phi i64 [ %.227, %entry.endif.endif.endif.e...endif.3.endif.endif.if ], [ 0, %entry.endif.endif.endif.e...endif.3.endif.endif ]
  %.232 = call ptr @PyErr_Occurred()
  %.233.not = icmp eq ptr %.232, null
  br i1 %.233.not, label %entry.endif.endif.endif.e...endif.4, label %entry.endif.endif.endif.e...if.4, !prof !29

entry.endif.endif.endif.e...if.4:                 ; preds = %entry.endif.endif.endif.e...endif.3.endif.endif.endif
  br label %entry.endif.endif.endif.e...endif.4

entry.endif.endif.endif.e...endif.4:              ; preds = %entry.endif.endif.endif.e...if.4, %entry.endif.endif.endif.e...endif.3.endif.endif.endif
  %.93.8 = phi i1 [ true, %entry.endif.endif.endif.e...if.4 ], [ %.93.7, %entry.endif.endif.endif.e...endif.3.endif.endif.endif ]
  %.237 = call ptr @PyTuple_GetItem(ptr %.92, i64 8)
  %.238 = call ptr @PyNumber_Float(ptr %.237)
  %.239 = call double @PyFloat_AsDouble(ptr %.238)
  call void @Py_DecRef(ptr %.238)
  %.241 = call ptr @PyErr_Occurred()
  %.242.not = icmp eq ptr %.241, null
  br i1 %.242.not, label %entry.endif.endif.endif.e...endif.4.endif, label %entry.endif.endif.endif.e...endif.4.if, !prof !29

entry.endif.endif.endif.e...endif.4.if:           ; preds = %entry.endif.endif.endif.e...endif.4
  br label %entry.endif.endif.endif.e...endif.4.endif

entry.endif.endif.endif.e...endif.4.endif:        ; preds = %entry.endif.endif.endif.e...endif.4.if, %entry.endif.endif.endif.e...endif.4
  %.93.9 = phi i1 [ true, %entry.endif.endif.endif.e...endif.4.if ], [ %.93.8, %entry.endif.endif.endif.e...endif.4 ]
  %.246 = call ptr @PyTuple_GetItem(ptr %.92, i64 9)
  %.247 = call ptr @PyNumber_Float(ptr %.246)
  %.248 = call double @PyFloat_AsDouble(ptr %.247)
  call void @Py_DecRef(ptr %.247)
  %.250 = call ptr @PyErr_Occurred()
  %.251.not = icmp eq ptr %.250, null
  br i1 %.251.not, label %entry.endif.endif.endif.e...endif.4.endif.endif, label %entry.endif.endif.endif.e...endif.4.endif.if, !prof !29

entry.endif.endif.endif.e...endif.4.endif.if:     ; preds = %entry.endif.endif.endif.e...endif.4.endif
  br label %entry.endif.endif.endif.e...endif.4.endif.endif

entry.endif.endif.endif.e...endif.4.endif.endif:  ; preds = %entry.endif.endif.endif.e...endif.4.endif.if, %entry.endif.endif.endif.e...endif.4.endif
  %.93.10 = phi i1 [ true, %entry.endif.endif.endif.e...endif.4.endif.if ], [ %.93.9, %entry.endif.endif.endif.e...endif.4.endif ]
  %.255 = call ptr @PyTuple_GetItem(ptr %.92, i64 10)
  %.256 = call ptr @PyNumber_Float(ptr %.255)
  %.257 = call double @PyFloat_AsDouble(ptr %.256)
  call void @Py_DecRef(ptr %.256)
  %.259 = call ptr @PyErr_Occurred()
  %.260.not = icmp ne ptr %.259, null
  %brmerge = select i1 %.260.not, i1 true, i1 %.93.10, !prof !28
  br i1 %brmerge, label %arg2.err, label %entry.endif.endif.endif.e...endif.5, !prof !30

entry.endif.endif.endif.e...endif.5:              ; preds = %entry.endif.endif.endif.e...endif.4.endif.endif
  %.284 = load ptr, ptr %.9, align 8
  %.287 = call ptr @PyNumber_Long(ptr %.284)
  %.288.not = icmp eq ptr %.287, null
  br i1 %.288.not, label %entry.endif.endif.endif.e...endif.5.endif, label %entry.endif.endif.endif.e...endif.5.if, !prof !28

arg3.err:                                         ; preds = %entry.endif.endif.endif.e...endif.5.endif.endif.endif, %entry.endif.endif.endif.e...endif.5.endif
  call void @NRT_decref(ptr %.121.fca.0.load)
  br label %arg2.err

entry.endif.endif.endif.e...endif.5.if:           ; preds = %entry.endif.endif.endif.e...endif.5
  %.290 = call i64 @PyLong_AsUnsignedLongLong(ptr nonnull %.287)
  call void @Py_DecRef(ptr nonnull %.287)
  br label %entry.endif.endif.endif.e...endif.5.endif

entry.endif.endif.endif.e...endif.5.endif:        ; preds = %entry.endif.endif.endif.e...endif.5.if, %entry.endif.endif.endif.e...endif.5
  %.285.0 = phi i64 [ %.290, %entry.endif.endif.endif.e...endif.5.if ], [ 0, %entry.endif.endif.endif.e...endif.5 ]
  %.295 = call ptr @PyErr_Occurred()
  %.296.not = icmp eq ptr %.295, null
  br i1 %.296.not, label %entry.endif.endif.endif.e...endif.5.endif.endif, label %arg3.err, !prof !29

entry.endif.endif.endif.e...endif.5.endif.endif:  ; preds = %entry.endif.endif.endif.e...endif.5.endif
  %.300 = load ptr, ptr %.10, align 8
  %.303 = call ptr @PyNumber_Long(ptr %.300)
  %.304.not = icmp eq ptr %.303, null
  br i1 %.304.not, label %entry.endif.endif.endif.e...endif.5.endif.endif.endif, label %entry.endif.endif.endif.e...endif.5.endif.endif.if, !prof !28

entry.endif.endif.endif.e...endif.5.endif.endif.if: ; preds = %entry.endif.endif.endif.e...endif.5.endif.endif
  %.306 = call i64 @PyLong_AsUnsignedLongLong(ptr nonnull %.303)
  call void @Py_DecRef(ptr nonnull %.303)
  br label %entry.endif.endif.endif.e...endif.5.endif.endif.endif

entry.endif.endif.endif.e...endif.5.endif.endif.endif: ; preds = %entry.endif.endif.endif.e...endif.5.endif.endif.if, %entry.endif.endif.endif.e...endif.5.endif.endif
  %.301.0 = phi i64 [ %.306, %entry.endif.endif.endif.e...endif.5.endif.endif.if ], [ 0, %entry.endif.endif.endif.e...endif.5.endif.endif ]
  %.311 = call ptr @PyErr_Occurred()
  %.312.not = icmp eq ptr %.311, null
  br i1 %.312.not, label %entry.endif.endif.endif.e...endif.6, label %arg3.err, !prof !29

entry.endif.endif.endif.e...endif.6:              ; preds = %entry.endif.endif.endif.e...endif.5.endif.endif.endif
  %.316 = call ptr @PyEval_SaveThread()
  store i64 0, ptr %.317, align 8
  %.329 = call i32 @_ZN3rqm7kernels3cpu4drawB2v1B56c8tJTIeFIjxB2IKSgI4CrvSCKg1MMbCQQPKkLTj8gMFYBFOOlH7AIpoAE5ArrayIfLi1E1C7mutable7alignedE5ArrayIyLi1E1C7mutable7alignedE5ArrayIhLi1E1C7mutable7alignedE164Law_28array_28uint64_2c_201d_2c_20C_29_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20float64_2c_20float64_2c_20float64_29yy(ptr nonnull %.317, ptr nonnull poison, ptr %.39.fca.0.load, ptr poison, i64 poison, i64 poison, ptr %.39.fca.4.load, i64 %.39.fca.5.0.load, i64 poison, ptr %.62.fca.0.load, ptr poison, i64 poison, i64 poison, ptr %.62.fca.4.load, i64 poison, i64 poison, ptr %.85.fca.0.load, ptr poison, i64 poison, i64 poison, ptr %.85.fca.4.load, i64 poison, i64 poison, ptr %.121.fca.0.load, ptr poison, i64 poison, i64 poison, ptr %.121.fca.4.load, i64 poison, i64 poison, i64 %.126.0, i64 %.142.0, i64 %.158.0, i64 %.174.0, i64 %.190.0, i64 %.206.0, i64 %.222.0, double %.239, double %.248, double %.257, i64 %.285.0, i64 %.301.0) #3
  %.339 = load i64, ptr %.317, align 8
  call void @PyEval_RestoreThread(ptr %.316)
  call void @NRT_decref(ptr %.39.fca.0.load)
  call void @NRT_decref(ptr %.62.fca.0.load)
  call void @NRT_decref(ptr %.85.fca.0.load)
  call void @NRT_decref(ptr %.121.fca.0.load)
  %cond = icmp eq i32 %.329, 0
  br i1 %cond, label %entry.endif.endif.endif.e...endif.6.if.endif, label %entry.endif.endif.endif.e...endif.6.endif, !prof !31

entry.endif.endif.endif.e...endif.6.endif:        ; preds = %entry.endif.endif.endif.e...endif.6
  %.337 = icmp sgt i32 %.329, 0
  br i1 %.337, label %entry.endif.endif.endif.e...endif.6.endif.if, label %entry.endif.endif.endif.e...endif.6.endif.endif

entry.endif.endif.endif.e...endif.6.if.endif:     ; preds = %entry.endif.endif.endif.e...endif.6
  %.359 = call ptr @PyLong_FromUnsignedLongLong(i64 %.339)
  br label %common.ret

entry.endif.endif.endif.e...endif.6.endif.if:     ; preds = %entry.endif.endif.endif.e...endif.6.endif
  call void @PyErr_Clear()
  unreachable

entry.endif.endif.endif.e...endif.6.endif.endif:  ; preds = %entry.endif.endif.endif.e...endif.6.endif
  switch i32 %.329, label %entry.endif.endif.endif.e...endif.7 [
    i32 -3, label %entry.endif.endif.endif.e...endif.6.endif.endif.if
    i32 -1, label %common.ret
  ]

entry.endif.endif.endif.e...endif.6.endif.endif.if: ; preds = %entry.endif.endif.endif.e...endif.6.endif.endif
  call void @PyErr_SetNone(ptr nonnull @PyExc_StopIteration)
  br label %common.ret

entry.endif.endif.endif.e...endif.7:              ; preds = %entry.endif.endif.endif.e...endif.6.endif.endif
  call void @PyErr_SetString(ptr nonnull @PyExc_SystemError, ptr nonnull @".const.unknown error when calling native function")
  br label %common.ret
}

declare i32 @PyArg_UnpackTuple(ptr, ptr, i64, i64, ...) local_unnamed_addr

declare void @PyErr_SetString(ptr, ptr) local_unnamed_addr

; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: write)
declare void @llvm.memset.p0.i64(ptr writeonly captures(none), i8, i64, i1 immarg) #1

declare i32 @NRT_adapt_ndarray_from_python(ptr captures(none), ptr captures(none)) local_unnamed_addr

declare i64 @PyTuple_Size(ptr) local_unnamed_addr

declare void @PyErr_Format(ptr, ptr, ...) local_unnamed_addr

declare ptr @PyTuple_GetItem(ptr, i64) local_unnamed_addr

declare ptr @PyNumber_Long(ptr) local_unnamed_addr

declare i64 @PyLong_AsUnsignedLongLong(ptr) local_unnamed_addr

declare void @Py_DecRef(ptr) local_unnamed_addr

declare ptr @PyErr_Occurred() local_unnamed_addr

declare ptr @PyNumber_Float(ptr) local_unnamed_addr

declare double @PyFloat_AsDouble(ptr) local_unnamed_addr

declare ptr @PyEval_SaveThread() local_unnamed_addr

declare void @PyEval_RestoreThread(ptr) local_unnamed_addr

declare ptr @PyLong_FromUnsignedLongLong(i64) local_unnamed_addr

declare void @PyErr_Clear() local_unnamed_addr

declare void @PyErr_SetNone(ptr) local_unnamed_addr

define i64 @cfunc._ZN3rqm7kernels3cpu4drawB2v1B56c8tJTIeFIjxB2IKSgI4CrvSCKg1MMbCQQPKkLTj8gMFYBFOOlH7AIpoAE5ArrayIfLi1E1C7mutable7alignedE5ArrayIyLi1E1C7mutable7alignedE5ArrayIhLi1E1C7mutable7alignedE164Law_28array_28uint64_2c_201d_2c_20C_29_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20float64_2c_20float64_2c_20float64_29yy({ ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] } %.1, { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] } %.2, { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] } %.3, { { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, i64, i64, i64, i64, i64, i64, i64, double, double, double } %.4, i64 %.5, i64 %.6) local_unnamed_addr {
entry:
  %.8 = alloca i64, align 8
  store i64 0, ptr %.8, align 8
  %extracted.meminfo = extractvalue { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] } %.1, 0
  %extracted.data = extractvalue { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] } %.1, 4
  %extracted.shape = extractvalue { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] } %.1, 5
  %.12 = extractvalue [1 x i64] %extracted.shape, 0
  %extracted.meminfo.1 = extractvalue { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] } %.2, 0
  %extracted.data.1 = extractvalue { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] } %.2, 4
  %extracted.meminfo.2 = extractvalue { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] } %.3, 0
  %extracted.data.2 = extractvalue { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] } %.3, 4
  %extracted.f0 = extractvalue { { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, i64, i64, i64, i64, i64, i64, i64, double, double, double } %.4, 0
  %extracted.meminfo.3 = extractvalue { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] } %extracted.f0, 0
  %extracted.data.3 = extractvalue { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] } %extracted.f0, 4
  %extracted.f1 = extractvalue { { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, i64, i64, i64, i64, i64, i64, i64, double, double, double } %.4, 1
  %extracted.f2 = extractvalue { { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, i64, i64, i64, i64, i64, i64, i64, double, double, double } %.4, 2
  %extracted.f3 = extractvalue { { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, i64, i64, i64, i64, i64, i64, i64, double, double, double } %.4, 3
  %extracted.f4 = extractvalue { { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, i64, i64, i64, i64, i64, i64, i64, double, double, double } %.4, 4
  %extracted.f5 = extractvalue { { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, i64, i64, i64, i64, i64, i64, i64, double, double, double } %.4, 5
  %extracted.f6 = extractvalue { { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, i64, i64, i64, i64, i64, i64, i64, double, double, double } %.4, 6
  %extracted.f7 = extractvalue { { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, i64, i64, i64, i64, i64, i64, i64, double, double, double } %.4, 7
  %extracted.f8 = extractvalue { { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, i64, i64, i64, i64, i64, i64, i64, double, double, double } %.4, 8
  %extracted.f9 = extractvalue { { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, i64, i64, i64, i64, i64, i64, i64, double, double, double } %.4, 9
  %extracted.f10 = extractvalue { { ptr, ptr, i64, i64, ptr, [1 x i64], [1 x i64] }, i64, i64, i64, i64, i64, i64, i64, double, double, double } %.4, 10
  %.20 = call i32 @_ZN3rqm7kernels3cpu4drawB2v1B56c8tJTIeFIjxB2IKSgI4CrvSCKg1MMbCQQPKkLTj8gMFYBFOOlH7AIpoAE5ArrayIfLi1E1C7mutable7alignedE5ArrayIyLi1E1C7mutable7alignedE5ArrayIhLi1E1C7mutable7alignedE164Law_28array_28uint64_2c_201d_2c_20C_29_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20uint64_2c_20float64_2c_20float64_2c_20float64_29yy(ptr nonnull %.8, ptr nonnull poison, ptr %extracted.meminfo, ptr poison, i64 poison, i64 poison, ptr %extracted.data, i64 %.12, i64 poison, ptr %extracted.meminfo.1, ptr poison, i64 poison, i64 poison, ptr %extracted.data.1, i64 poison, i64 poison, ptr %extracted.meminfo.2, ptr poison, i64 poison, i64 poison, ptr %extracted.data.2, i64 poison, i64 poison, ptr %extracted.meminfo.3, ptr poison, i64 poison, i64 poison, ptr %extracted.data.3, i64 poison, i64 poison, i64 %extracted.f1, i64 %extracted.f2, i64 %extracted.f3, i64 %extracted.f4, i64 %extracted.f5, i64 %extracted.f6, i64 %extracted.f7, double %extracted.f8, double %extracted.f9, double %extracted.f10, i64 %.5, i64 %.6) #3
  %.30 = load i64, ptr %.8, align 8
  %.32 = alloca i32, align 4
  store i32 0, ptr %.32, align 4
  %cond = icmp eq i32 %.20, 0
  br i1 %cond, label %common.ret, label %entry.if, !prof !31

entry.if:                                         ; preds = %entry
  %.28 = icmp sgt i32 %.20, 0
  call void @numba_gil_ensure(ptr nonnull %.32)
  br i1 %.28, label %entry.if.if, label %entry.if.endif

common.ret:                                       ; preds = %entry, %.35
  ret i64 %.30

.35:                                              ; preds = %entry.if.endif, %entry.if.endif.endif.endif, %entry.if.endif.if
  %.83 = call ptr @PyUnicode_FromString(ptr nonnull @".const.<numba.core.cpu.CPUContext>")
  call void @PyErr_WriteUnraisable(ptr %.83)
  call void @Py_DecRef(ptr %.83)
  call void @numba_gil_release(ptr nonnull %.32)
  br label %common.ret

entry.if.if:                                      ; preds = %entry.if
  call void @PyErr_Clear()
  unreachable

entry.if.endif:                                   ; preds = %entry.if
  switch i32 %.20, label %entry.if.endif.endif.endif [
    i32 -3, label %entry.if.endif.if
    i32 -1, label %.35
  ]

entry.if.endif.if:                                ; preds = %entry.if.endif
  call void @PyErr_SetNone(ptr nonnull @PyExc_StopIteration)
  br label %.35

entry.if.endif.endif.endif:                       ; preds = %entry.if.endif
  call void @PyErr_SetString(ptr nonnull @PyExc_SystemError, ptr nonnull @".const.unknown error when calling native function.2")
  br label %.35
}

declare void @numba_gil_ensure(ptr) local_unnamed_addr

declare ptr @PyUnicode_FromString(ptr) local_unnamed_addr

declare void @PyErr_WriteUnraisable(ptr) local_unnamed_addr

declare void @numba_gil_release(ptr) local_unnamed_addr

; Function Attrs: mustprogress nofree noinline norecurse nounwind willreturn memory(argmem: readwrite)
define linkonce_odr void @NRT_incref(ptr captures(address_is_null) %.1) local_unnamed_addr #2 {
.3:
  %.4 = icmp eq ptr %.1, null
  br i1 %.4, label %common.ret, label %.3.endif, !prof !28

common.ret:                                       ; preds = %.3.endif, %.3
  ret void

.3.endif:                                         ; preds = %.3
  %.4.i = atomicrmw add ptr %.1, i64 1 monotonic, align 8
  br label %common.ret
}

; Function Attrs: noinline
define linkonce_odr void @NRT_decref(ptr %.1) local_unnamed_addr #3 {
.3:
  %.4 = icmp eq ptr %.1, null
  br i1 %.4, label %common.ret1, label %.3.endif, !prof !28

common.ret1:                                      ; preds = %.3, %.3.endif
  ret void

.3.endif:                                         ; preds = %.3
  fence release
  %0 = tail call i8 @llvm.x86.atomic.sub.cc.i64(ptr nonnull %.1, i64 1, i32 4)
  %1 = trunc i8 %0 to i1
  br i1 %1, label %.3.endif.if, label %common.ret1, !prof !28

.3.endif.if:                                      ; preds = %.3.endif
  fence acquire
  tail call void @NRT_MemInfo_call_dtor(ptr nonnull %.1)
  ret void
}

; Function Attrs: nounwind
declare i8 @llvm.x86.atomic.sub.cc.i64(ptr, i64, i32 immarg) #4

declare void @NRT_MemInfo_call_dtor(ptr) local_unnamed_addr

; Function Attrs: nocallback nocreateundeforpoison nofree nosync nounwind speculatable willreturn memory(none)
declare double @llvm.fabs.f64(double) #5

; Function Attrs: nocallback nocreateundeforpoison nofree nosync nounwind speculatable willreturn memory(none)
declare <4 x double> @llvm.fabs.v4f64(<4 x double>) #5

; Function Attrs: nocallback nocreateundeforpoison nofree nosync nounwind speculatable willreturn memory(none)
declare <4 x i64> @llvm.umax.v4i64(<4 x i64>, <4 x i64>) #5

; Function Attrs: nocallback nocreateundeforpoison nofree nosync nounwind speculatable willreturn memory(none)
declare <4 x i64> @llvm.umin.v4i64(<4 x i64>, <4 x i64>) #5

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.vector.reduce.or.v4i64(<4 x i64>) #6

; Function Attrs: nocallback nofree nosync nounwind willreturn memory(read)
declare <4 x i64> @llvm.masked.gather.v4i64.v4p0(<4 x ptr>, <4 x i1>, <4 x i64>) #7

; Function Attrs: nocallback nocreateundeforpoison nofree nosync nounwind speculatable willreturn memory(none)
declare <4 x i1> @llvm.is.fpclass.v4f64(<4 x double>, i32 immarg) #5

; Function Attrs: nocallback nocreateundeforpoison nofree nosync nounwind speculatable willreturn memory(none)
declare i1 @llvm.is.fpclass.f64(double, i32 immarg) #5

attributes #0 = { mustprogress nocallback nocreateundeforpoison nofree nosync nounwind speculatable willreturn memory(none) }
attributes #1 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: write) }
attributes #2 = { mustprogress nofree noinline norecurse nounwind willreturn memory(argmem: readwrite) }
attributes #3 = { noinline }
attributes #4 = { nounwind }
attributes #5 = { nocallback nocreateundeforpoison nofree nosync nounwind speculatable willreturn memory(none) }
attributes #6 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #7 = { nocallback nofree nosync nounwind willreturn memory(read) }

!0 = !{!1}
!1 = distinct !{!1, !2}
!2 = distinct !{!2, !"LVerDomain"}
!3 = !{!4}
!4 = !{!"table", !5}
!5 = !{!"rqm"}
!6 = !{!7}
!7 = distinct !{!7, !2}
!8 = !{!9}
!9 = distinct !{!9, !2}
!10 = !{!4, !1, !7}
!11 = distinct !{!11, !12, !13}
!12 = !{!"llvm.loop.isvectorized", i32 1}
!13 = !{!"llvm.loop.unroll.runtime.disable"}
!14 = !{!"branch_weights", i32 4, i32 12}
!15 = distinct !{!15, !12, !13}
!16 = !{!17}
!17 = distinct !{!17, !18}
!18 = distinct !{!18, !"LVerDomain"}
!19 = !{!20}
!20 = distinct !{!20, !18}
!21 = !{!22}
!22 = distinct !{!22, !18}
!23 = !{!4, !17, !20}
!24 = distinct !{!24, !12, !13}
!25 = distinct !{!25, !12, !13}
!26 = distinct !{!26, !12}
!27 = distinct !{!27, !12}
!28 = !{!"branch_weights", i32 1, i32 99}
!29 = !{!"branch_weights", i32 99, i32 1}
!30 = !{!"branch_weights", i32 199, i32 9801}
!31 = !{!"branch_weights", i32 49, i32 1}
