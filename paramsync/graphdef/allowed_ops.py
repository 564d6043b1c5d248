"""The ops that a stranger's graph may use, the random ones among them, and the most nodes that it may have.

The list has the ops that predictions need. Any other op can touch files, the network or processes, keeps a state,
trusts its arguments too much, or has not been requested yet. This module needs no TensorFlow.
"""

from __future__ import annotations

# Values, arguments and checks
_GRAPH = """
    Assert BroadcastGradientArgs CheckNumerics CheckNumericsV2 Const ControlTrigger DeviceIndex EnsureShape
    FakeParam GuaranteeConst Identity IdentityN NoOp Placeholder PlaceholderV2 PlaceholderWithDefault
    PreventGradient Snapshot StopGradient
"""
# Calls and control flow
_CONTROL = """
    Case Enter Exit For If LoopCond Merge NextIteration OptionalFromValue OptionalNone PartitionedCall
    StatefulPartitionedCall StatelessCase StatelessIf StatelessWhile Switch While
"""
# Element by element, reductions, sums by segment
_MATHS = """
    Abs AccumulateNV2 Acos Acosh Add AddN AddV2 All Angle Any ApproximateEqual ArgMax ArgMin Asin Asinh Atan Atan2
    Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0
    BesselY1 Betainc Bincount BitwiseAnd BitwiseOr BitwiseXor Bucketize Cast Ceil ClipByValue Complex ComplexAbs
    Conj Cos Cosh Cross Cumprod Cumsum CumulativeLogsumexp Dawsn DenseBincount Digamma Div DivNoNan Equal Erf Erfc
    Erfinv EuclideanNorm Exp Expint Expm1 Floor FloorDiv FloorMod FresnelCos FresnelSin Greater GreaterEqual
    HistogramFixedWidth Igamma IgammaGradA Igammac Imag Inv InvGrad Invert IsFinite IsInf IsNan LeftShift Less
    LessEqual Lgamma LinSpace Log Log1p LogicalAnd LogicalNot LogicalOr Max Maximum Mean Min Minimum Mod Mul
    MulNoNan Ndtri Neg NextAfter NotEqual Polygamma PopulationCount Pow Prod RaggedBincount Range Real RealDiv
    Reciprocal ReciprocalGrad RightShift Rint Round Rsqrt RsqrtGrad SegmentMax SegmentMaxV2 SegmentMean SegmentMin
    SegmentMinV2 SegmentProd SegmentProdV2 SegmentSum SegmentSumV2 Sigmoid SigmoidGrad Sign Sin Sinh SobolSample
    Spence Sqrt SqrtGrad Square SquaredDifference Sub Sum Tan Tanh TanhGrad ToBool TruncateDiv TruncateMod
    UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum Xdivy Xlog1py Xlogy Zeta
"""
# Shapes, slices, gathering and scattering
_ARRAYS = """
    ApproxTopK BatchMatrixBandPart BatchMatrixDiag BatchMatrixDiagPart BatchMatrixSetDiag BatchToSpace
    BatchToSpaceND Bitcast BroadcastArgs BroadcastTo Concat ConcatOffset ConcatV2 ConjugateTranspose DepthToSpace
    Diag DiagPart DynamicPartition DynamicStitch ExpandDims ExtractImagePatches ExtractVolumePatches Fill
    Fingerprint Gather GatherNd GatherV2 InTopK InTopKV2 InvertPermutation ListDiff LowerBound MatrixBandPart
    MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixSetDiag
    MatrixSetDiagV2 MatrixSetDiagV3 MirrorPad MirrorPadGrad NthElement OneHot OnesLike Pack Pad PadV2
    ParallelDynamicStitch Rank Reshape Reverse ReverseSequence ReverseV2 Roll ScatterNd ScatterNdNonAliasingAdd
    Select SelectV2 Shape ShapeN Size Slice SpaceToBatch SpaceToBatchND SpaceToDepth Split SplitV Squeeze
    StridedSlice StridedSliceGrad TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub
    TensorScatterUpdate TensorStridedSliceUpdate Tile TileGrad TopK TopKV2 Transpose Unique UniqueV2
    UniqueWithCounts UniqueWithCountsV2 Unpack UnravelIndex UpperBound Where ZerosLike
"""
# Matrices and spectra
_ALGEBRA = """
    BandedTriangularSolve BatchCholesky BatchCholeskyGrad BatchFFT BatchFFT2D BatchFFT3D BatchIFFT BatchIFFT2D
    BatchIFFT3D BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchMatrixDeterminant BatchMatrixInverse BatchMatrixSolve
    BatchMatrixSolveLs BatchMatrixTriangularSolve BatchSelfAdjointEig BatchSelfAdjointEigV2 BatchSvd Cholesky
    CholeskyGrad Eig Einsum FFT FFT2D FFT3D FFTND IFFT IFFT2D IFFT3D IFFTND IRFFT IRFFT2D IRFFT3D IRFFTND
    LogMatrixDeterminant Lu MatMul MatrixDeterminant MatrixExponential MatrixInverse MatrixLogarithm MatrixSolve
    MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve NearestNeighbors Qr RFFT RFFT2D RFFT3D RFFTND
    SelfAdjointEig SelfAdjointEigV2 SparseMatMul Svd TridiagonalMatMul TridiagonalSolve
"""
# Neural networks, with the gradients some models compute to predict
_LAYERS = """
    AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad BatchNormWithGlobalNormalization BiasAdd BiasAddGrad BiasAddV1
    BlockLSTM BlockLSTMGrad BlockLSTMGradV2 BlockLSTMV2 CTCBeamSearchDecoder CTCGreedyDecoder CTCLoss CTCLossV2 Conv
    Conv2D Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv2DBackpropInput Conv2DBackpropInputV2 Conv3D
    Conv3DBackpropFilter Conv3DBackpropFilterV2 Conv3DBackpropInput Conv3DBackpropInputV2 CudnnRNN
    CudnnRNNCanonicalToParams CudnnRNNCanonicalToParamsV2 CudnnRNNParamsSize CudnnRNNParamsToCanonical
    CudnnRNNParamsToCanonicalV2 CudnnRNNV2 CudnnRNNV3 DataFormatDimMap DataFormatVecPermute DepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Dilation2D Dilation2DBackpropFilter
    Dilation2DBackpropInput Elu EluGrad FusedBatchNorm FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3
    FusedBatchNormV2 FusedBatchNormV3 FusedPadConv2D FusedResizeAndPadConv2D GRUBlockCell GRUBlockCellGrad
    IsotonicRegression L2Loss LRN LRNGrad LSTMBlockCell LSTMBlockCellGrad LeakyRelu LeakyReluGrad LogSoftmax MaxPool
    MaxPool3D MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2
    MaxPoolGradGradWithArgmax MaxPoolGradV2 MaxPoolGradWithArgmax MaxPoolV2 MaxPoolWithArgmax Relu Relu6 Relu6Grad
    ReluGrad Selu SeluGrad Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Softsign SoftsignGrad
    SparseSoftmaxCrossEntropyWithLogits
"""
# Quantization
_QUANTIZED = """
    Dequantize FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars
    FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel FakeQuantWithMinMaxVarsPerChannelGradient
    QuantizeAndDequantize QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4
    QuantizeAndDequantizeV4Grad QuantizeV2
"""
# Text, and records that travel as text
_STRINGS = """
    AsString DecodeBase64 DecodeCSV DecodeJSONExample DecodePaddedRaw DecodeRaw EditDistance EncodeBase64
    ParseExample ParseExampleV2 ParseSequenceExample ParseSequenceExampleV2 ParseSingleExample
    ParseSingleSequenceExample ReduceJoin RegexFullMatch RegexReplace SerializeManySparse SerializeSparse
    SerializeTensor StaticRegexFullMatch StaticRegexReplace StringFormat StringJoin StringLength StringLower
    StringNGrams StringSplit StringSplitV2 StringStrip StringToHashBucket StringToHashBucketFast
    StringToHashBucketStrong StringToNumber StringUpper Substr UnicodeDecode UnicodeDecodeWithOffsets UnicodeEncode
    UnicodeScript UnicodeTranscode UnsortedSegmentJoin
"""
# Sparse and ragged tensors, sets
_SPARSE = """
    DenseCountSparseOutput DenseToDenseSetOperation DenseToSparseSetOperation RaggedCountSparseOutput RaggedCross
    RaggedFillEmptyRows RaggedFillEmptyRowsGrad RaggedGather RaggedRange RaggedTensorFromVariant
    RaggedTensorToSparse RaggedTensorToTensor RaggedTensorToVariant RaggedTensorToVariantGradient SetSize SparseAdd
    SparseAddGrad SparseBincount SparseConcat SparseCountSparseOutput SparseCross SparseCrossHashed SparseCrossV2
    SparseDenseCwiseAdd SparseDenseCwiseDiv SparseDenseCwiseMul SparseFillEmptyRows SparseFillEmptyRowsGrad
    SparseReduceMax SparseReduceMaxSparse SparseReduceSum SparseReduceSumSparse SparseReorder SparseReshape
    SparseSegmentMean SparseSegmentMeanGrad SparseSegmentMeanGradV2 SparseSegmentMeanWithNumSegments
    SparseSegmentSqrtN SparseSegmentSqrtNGrad SparseSegmentSqrtNGradV2 SparseSegmentSqrtNWithNumSegments
    SparseSegmentSum SparseSegmentSumGrad SparseSegmentSumGradV2 SparseSegmentSumWithNumSegments SparseSlice
    SparseSliceGrad SparseSoftmax SparseSparseMaximum SparseSparseMinimum SparseSplit SparseTensorDenseAdd
    SparseTensorDenseMatMul SparseToDense SparseToSparseSetOperation
"""
# Images and sound
_IMAGES = """
    AdjustContrast AdjustContrastv2 AdjustHue AdjustSaturation AudioSpectrogram CombinedNonMaxSuppression
    CropAndResize CropAndResizeGradBoxes CropAndResizeGradImage DecodeAndCropJpeg DecodeBmp DecodeGif DecodeImage
    DecodeJpeg DecodePng DecodeWav DecodeWebP DrawBoundingBoxes DrawBoundingBoxesV2 EncodeJpeg
    EncodeJpegVariableQuality EncodePng EncodeWav ExtractGlimpse ExtractGlimpseV2 ExtractJpegShape
    GenerateBoundingBoxProposals HSVToRGB ImageProjectiveTransformV2 ImageProjectiveTransformV3 Mfcc
    NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5
    NonMaxSuppressionWithOverlaps RGBToHSV ResizeArea ResizeBicubic ResizeBicubicGrad ResizeBilinear
    ResizeBilinearGrad ResizeNearestNeighbor ResizeNearestNeighborGrad ScaleAndTranslate ScaleAndTranslateGrad
"""
# Lists and arrays of tensors, which loops fill
_LISTS = """
    EmptyTensorList TensorArray TensorArrayClose TensorArrayCloseV2 TensorArrayCloseV3 TensorArrayConcat
    TensorArrayConcatV2 TensorArrayConcatV3 TensorArrayGather TensorArrayGatherV2 TensorArrayGatherV3
    TensorArrayPack TensorArrayRead TensorArrayReadV2 TensorArrayReadV3 TensorArrayScatter TensorArrayScatterV2
    TensorArrayScatterV3 TensorArraySize TensorArraySizeV2 TensorArraySizeV3 TensorArraySplit TensorArraySplitV2
    TensorArraySplitV3 TensorArrayUnpack TensorArrayV2 TensorArrayV3 TensorArrayWrite TensorArrayWriteV2
    TensorArrayWriteV3 TensorListConcat TensorListConcatLists TensorListConcatV2 TensorListElementShape
    TensorListFromTensor TensorListGather TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack
    TensorListPushBackBatch TensorListReserve TensorListResize TensorListScatter TensorListScatterIntoExistingList
    TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack
"""
# Lookups in the tables that travel with a graph
_TABLES = """
    LookupTableFindV2 LookupTableSizeV2
"""
# Random numbers that depend on arguments alone
_SEEDED = """
    ComputeAccidentalHits RandomGammaGrad RandomIndexShuffle StatelessMultinomial
    StatelessParameterizedTruncatedNormal StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3
    StatelessRandomGetAlg StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomNormal
    StatelessRandomNormalV2 StatelessRandomPoisson StatelessRandomUniform StatelessRandomUniformFullInt
    StatelessRandomUniformFullIntV2 StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformV2
    StatelessSampleDistortedBoundingBox StatelessShuffle StatelessTruncatedNormal StatelessTruncatedNormalV2
"""
# Random numbers that differ from call to call
_RANDOM = """
    AllCandidateSampler FractionalAvgPool FractionalMaxPool LearnedUnigramCandidateSampler
    LogUniformCandidateSampler Multinomial NonDeterministicInts ParameterizedTruncatedNormal RandomCrop RandomGamma
    RandomPoisson RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt
    SampleDistortedBoundingBox SampleDistortedBoundingBoxV2 ThreadUnsafeUnigramCandidateSampler TruncatedNormal
    UniformCandidateSampler
"""

STOCHASTIC = frozenset(_RANDOM.split())
"""Ops of the list whose results differ from call to call."""

_GROUPS = [_GRAPH, _CONTROL, _MATHS, _ARRAYS, _ALGEBRA, _LAYERS, _QUANTIZED]
_GROUPS += [_STRINGS, _SPARSE, _IMAGES, _LISTS, _TABLES, _SEEDED, _RANDOM]

SAFE = frozenset(" ".join(_GROUPS).split())
"""Ops that compute their results from their arguments, and touch nothing else."""

NODES = 500_000
"""The most nodes that a graph and its functions may have together."""
