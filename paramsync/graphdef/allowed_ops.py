"""Lists the ops that an untrusted graph may use, and which of them are random; limits the nodes of a graph.

The lists contain the ops that predictions need. Any other op can access files, the network or processes, keeps a state,
does not check its arguments enough, or has not been requested yet. This module needs no TensorFlow.
"""

from __future__ import annotations

# Ops that give the same results for the same arguments
_REPEATABLE = """
    Abs AccumulateNV2 Acos Acosh Add AddN AddV2 AdjustContrast AdjustContrastv2 AdjustHue AdjustSaturation All Angle Any
    ApproxTopK ApproximateEqual ArgMax ArgMin AsString Asin Asinh Assert Atan Atan2 Atanh AudioSpectrogram AvgPool
    AvgPool3D AvgPool3DGrad AvgPoolGrad BandedTriangularSolve BatchCholesky BatchCholeskyGrad BatchFFT BatchFFT2D
    BatchFFT3D BatchIFFT BatchIFFT2D BatchIFFT3D BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchMatrixBandPart
    BatchMatrixDeterminant BatchMatrixDiag BatchMatrixDiagPart BatchMatrixInverse BatchMatrixSetDiag BatchMatrixSolve
    BatchMatrixSolveLs BatchMatrixTriangularSolve BatchNormWithGlobalNormalization BatchSelfAdjointEig
    BatchSelfAdjointEigV2 BatchSvd BatchToSpace BatchToSpaceND BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1
    BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc BiasAdd BiasAddGrad BiasAddV1 Bincount Bitcast
    BitwiseAnd BitwiseOr BitwiseXor BlockLSTM BlockLSTMGrad BlockLSTMGradV2 BlockLSTMV2 BroadcastArgs
    BroadcastGradientArgs BroadcastTo Bucketize CTCBeamSearchDecoder CTCGreedyDecoder CTCLoss CTCLossV2 Case Cast Ceil
    CheckNumerics CheckNumericsV2 Cholesky CholeskyGrad ClipByValue CombinedNonMaxSuppression Complex ComplexAbs
    ComputeAccidentalHits Concat ConcatOffset ConcatV2 Conj ConjugateTranspose Const ControlTrigger Conv Conv2D
    Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv2DBackpropInput Conv2DBackpropInputV2 Conv3D Conv3DBackpropFilter
    Conv3DBackpropFilterV2 Conv3DBackpropInput Conv3DBackpropInputV2 Cos Cosh CropAndResize CropAndResizeGradBoxes
    CropAndResizeGradImage Cross CudnnRNN CudnnRNNCanonicalToParams CudnnRNNCanonicalToParamsV2 CudnnRNNParamsSize
    CudnnRNNParamsToCanonical CudnnRNNParamsToCanonicalV2 CudnnRNNV2 CudnnRNNV3 Cumprod Cumsum CumulativeLogsumexp
    DataFormatDimMap DataFormatVecPermute Dawsn DecodeAndCropJpeg DecodeBase64 DecodeBmp DecodeCSV DecodeGif DecodeImage
    DecodeJSONExample DecodeJpeg DecodePaddedRaw DecodePng DecodeRaw DecodeWav DecodeWebP DenseBincount
    DenseCountSparseOutput DenseToDenseSetOperation DenseToSparseSetOperation DepthToSpace DepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Dequantize DeviceIndex Diag DiagPart Digamma
    Dilation2D Dilation2DBackpropFilter Dilation2DBackpropInput Div DivNoNan DrawBoundingBoxes DrawBoundingBoxesV2
    DynamicPartition DynamicStitch EditDistance Eig Einsum Elu EluGrad EmptyTensorList EncodeBase64 EncodeJpeg
    EncodeJpegVariableQuality EncodePng EncodeWav EnsureShape Enter Equal Erf Erfc Erfinv EuclideanNorm Exit Exp
    ExpandDims Expint Expm1 ExtractGlimpse ExtractGlimpseV2 ExtractImagePatches ExtractJpegShape ExtractVolumePatches
    FFT FFT2D FFT3D FFTND FakeParam FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars
    FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel FakeQuantWithMinMaxVarsPerChannelGradient Fill
    Fingerprint Floor FloorDiv FloorMod For FresnelCos FresnelSin FusedBatchNorm FusedBatchNormGrad FusedBatchNormGradV2
    FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3 FusedPadConv2D FusedResizeAndPadConv2D GRUBlockCell
    GRUBlockCellGrad Gather GatherNd GatherV2 GenerateBoundingBoxProposals Greater GreaterEqual GuaranteeConst HSVToRGB
    HistogramFixedWidth IFFT IFFT2D IFFT3D IFFTND IRFFT IRFFT2D IRFFT3D IRFFTND Identity IdentityN If Igamma IgammaGradA
    Igammac Imag ImageProjectiveTransformV2 ImageProjectiveTransformV3 InTopK InTopKV2 Inv InvGrad Invert
    InvertPermutation IsFinite IsInf IsNan IsotonicRegression L2Loss LRN LRNGrad LSTMBlockCell LSTMBlockCellGrad
    LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma LinSpace ListDiff Log Log1p LogMatrixDeterminant LogSoftmax
    LogicalAnd LogicalNot LogicalOr LookupTableFindV2 LookupTableSizeV2 LoopCond LowerBound Lu MatMul MatrixBandPart
    MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3
    MatrixExponential MatrixInverse MatrixLogarithm MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MatrixSolve
    MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Max MaxPool MaxPool3D MaxPool3DGrad MaxPool3DGradGrad
    MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradGradWithArgmax MaxPoolGradV2 MaxPoolGradWithArgmax
    MaxPoolV2 MaxPoolWithArgmax Maximum Mean Merge Mfcc Min Minimum MirrorPad MirrorPadGrad Mod Mul MulNoNan Ndtri
    NearestNeighbors Neg NextAfter NextIteration NoOp NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV3
    NonMaxSuppressionV4 NonMaxSuppressionV5 NonMaxSuppressionWithOverlaps NotEqual NthElement OneHot OnesLike
    OptionalFromValue OptionalNone Pack Pad PadV2 ParallelDynamicStitch ParseExample ParseExampleV2 ParseSequenceExample
    ParseSequenceExampleV2 ParseSingleExample ParseSingleSequenceExample PartitionedCall Placeholder PlaceholderV2
    PlaceholderWithDefault Polygamma PopulationCount Pow PreventGradient Prod Qr QuantizeAndDequantize
    QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 QuantizeAndDequantizeV4Grad QuantizeV2 RFFT
    RFFT2D RFFT3D RFFTND RGBToHSV RaggedBincount RaggedCountSparseOutput RaggedCross RaggedFillEmptyRows
    RaggedFillEmptyRowsGrad RaggedGather RaggedRange RaggedTensorFromVariant RaggedTensorToSparse RaggedTensorToTensor
    RaggedTensorToVariant RaggedTensorToVariantGradient RandomGammaGrad RandomIndexShuffle Range Rank Real RealDiv
    Reciprocal ReciprocalGrad ReduceJoin RegexFullMatch RegexReplace Relu Relu6 Relu6Grad ReluGrad Reshape ResizeArea
    ResizeBicubic ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor ResizeNearestNeighborGrad
    Reverse ReverseSequence ReverseV2 RightShift Rint Roll Round Rsqrt RsqrtGrad ScaleAndTranslate ScaleAndTranslateGrad
    ScatterNd ScatterNdNonAliasingAdd SegmentMax SegmentMaxV2 SegmentMean SegmentMin SegmentMinV2 SegmentProd
    SegmentProdV2 SegmentSum SegmentSumV2 Select SelectV2 SelfAdjointEig SelfAdjointEigV2 Selu SeluGrad
    SerializeManySparse SerializeSparse SerializeTensor SetSize Shape ShapeN Sigmoid SigmoidGrad Sign Sin Sinh Size
    Slice Snapshot SobolSample Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Softsign SoftsignGrad
    SpaceToBatch SpaceToBatchND SpaceToDepth SparseAdd SparseAddGrad SparseBincount SparseConcat SparseCountSparseOutput
    SparseCross SparseCrossHashed SparseCrossV2 SparseDenseCwiseAdd SparseDenseCwiseDiv SparseDenseCwiseMul
    SparseFillEmptyRows SparseFillEmptyRowsGrad SparseMatMul SparseReduceMax SparseReduceMaxSparse SparseReduceSum
    SparseReduceSumSparse SparseReorder SparseReshape SparseSegmentMean SparseSegmentMeanGrad SparseSegmentMeanGradV2
    SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNGrad SparseSegmentSqrtNGradV2
    SparseSegmentSqrtNWithNumSegments SparseSegmentSum SparseSegmentSumGrad SparseSegmentSumGradV2
    SparseSegmentSumWithNumSegments SparseSlice SparseSliceGrad SparseSoftmax SparseSoftmaxCrossEntropyWithLogits
    SparseSparseMaximum SparseSparseMinimum SparseSplit SparseTensorDenseAdd SparseTensorDenseMatMul SparseToDense
    SparseToSparseSetOperation Spence Split SplitV Sqrt SqrtGrad Square SquaredDifference Squeeze
    StatefulPartitionedCall StatelessCase StatelessIf StatelessMultinomial StatelessParameterizedTruncatedNormal
    StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomGetAlg
    StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomNormal StatelessRandomNormalV2
    StatelessRandomPoisson StatelessRandomUniform StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2
    StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessSampleDistortedBoundingBox
    StatelessShuffle StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessWhile StaticRegexFullMatch
    StaticRegexReplace StopGradient StridedSlice StridedSliceGrad StringFormat StringJoin StringLength StringLower
    StringNGrams StringSplit StringSplitV2 StringStrip StringToHashBucket StringToHashBucketFast
    StringToHashBucketStrong StringToNumber StringUpper Sub Substr Sum Svd Switch Tan Tanh TanhGrad TensorArray
    TensorArrayClose TensorArrayCloseV2 TensorArrayCloseV3 TensorArrayConcat TensorArrayConcatV2 TensorArrayConcatV3
    TensorArrayGather TensorArrayGatherV2 TensorArrayGatherV3 TensorArrayPack TensorArrayRead TensorArrayReadV2
    TensorArrayReadV3 TensorArrayScatter TensorArrayScatterV2 TensorArrayScatterV3 TensorArraySize TensorArraySizeV2
    TensorArraySizeV3 TensorArraySplit TensorArraySplitV2 TensorArraySplitV3 TensorArrayUnpack TensorArrayV2
    TensorArrayV3 TensorArrayWrite TensorArrayWriteV2 TensorArrayWriteV3 TensorListConcat TensorListConcatLists
    TensorListConcatV2 TensorListElementShape TensorListFromTensor TensorListGather TensorListGetItem TensorListLength
    TensorListPopBack TensorListPushBack TensorListPushBackBatch TensorListReserve TensorListResize TensorListScatter
    TensorListScatterIntoExistingList TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack
    TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate TensorStridedSliceUpdate
    Tile TileGrad ToBool TopK TopKV2 Transpose TridiagonalMatMul TridiagonalSolve TruncateDiv TruncateMod UnicodeDecode
    UnicodeDecodeWithOffsets UnicodeEncode UnicodeScript UnicodeTranscode Unique UniqueV2 UniqueWithCounts
    UniqueWithCountsV2 Unpack UnravelIndex UnsortedSegmentJoin UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
    UnsortedSegmentSum UpperBound Where While Xdivy Xlog1py Xlogy ZerosLike Zeta
"""

# Ops whose results differ from call to call
_RANDOM = """
    AllCandidateSampler FractionalAvgPool FractionalMaxPool LearnedUnigramCandidateSampler LogUniformCandidateSampler
    Multinomial NonDeterministicInts ParameterizedTruncatedNormal RandomCrop RandomGamma RandomPoisson RandomPoissonV2
    RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt SampleDistortedBoundingBox
    SampleDistortedBoundingBoxV2 ThreadUnsafeUnigramCandidateSampler TruncatedNormal UniformCandidateSampler
"""

STOCHASTIC = frozenset(_RANDOM.split())
"""Safe ops whose results differ from call to call."""

SAFE = STOCHASTIC.union(_REPEATABLE.split())
"""Ops that compute results from their arguments, and have no other effect."""

NODES = 500_000
"""The most nodes that a graph and its functions may have together."""
