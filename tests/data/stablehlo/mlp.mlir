module @jit_mlp attributes {jax.uses_shape_polymorphism = false, mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<1x8xf32> loc("features")) -> (tensor<1x4xf32> {jax.result_info = "result['scores']"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %cst_1 = stablehlo.constant dense<"0x193D213A2DF5183ECC5B0CBED4FDE3BE9CCA68BE8CDCFDBE2359F63C2C8C2B3F7E027CBE71D79EBE94CC7A3EE5B9363E6DE3573D2733EEBE85A16FBC64FFB13E390F2CBF9D4C6ABE445B73BF930F25BFF9BD6BBFBBBBF0BDB03B22BF29E30A3E5B83A03DD36ABFBD9712A1BFC7E789BEEDA8C6BC8B0E683D7DDB43BF149C74BE3A80FABEF50FCFBE87CB073F98BACEBE7B3585BC6067E23ED76695BEFEC364BD063B623D05A0023DA1CE1CBF69EF1B3DEDED2D3FD60846BF8100DC3EE26F743D6737A4BED306803F7423C33E4C8219BFF79B183DEEA1933E1A50C1BD35D3AE3E3C3A08BDBCD0AA3E8221383F34F8ACBE9103D03DA7366DBEA752823DFEF517BF1C4D94BE99E7C8BD6415E63EA296123F5C6929BFAF6DCBBE769BA53E9D077FBF9A246DBE5E3E47BDDEE5203FC67CB03E848827BEFBB53CBE9D1900BE0303433F16265BBEFF7B1BBE8E86343E7F5677BDE004CABDC1990EBF8AC4BCBB141D63BEAD43153FCF30A73ED4C845BC051BAB3E62032EBE14AC063FCCEE30BB8C58953EFD3B25BF0C80313E131758BFD44282BF65E41BBEA861E6BE75FDA73D18AA8F3FCFEBD4BEC4BA9FBE6955D23D3D6C7C3ECBA3B4BD67DFD2BD9DD4B33EAB18853E7D4F04BFD12922BDF188903C5AF906BFA109053E09A3DBBE5DD9F83E2F5FC53D52E6363DA24D97BEB5E972BD27B67FBFF6D110BF23C6393E713A88BF56BBD83E"> : tensor<8x16xf32>
    %cst_2 = stablehlo.constant dense<[-0.873048245, 0.378369242, -0.422748506, 0.389495552, 0.0654756054, -0.768417477, 0.624574363, 0.720853567, -0.0329024531, -0.136958137, -0.0799334794, -0.487576157, 0.549293399, -0.27144596, -0.0255952068, -0.396648198]> : tensor<16xf32>
    %cst_3 = stablehlo.constant dense<[[-0.313036561, -0.63886255, 0.628534675, -0.0770437866], [0.48296082, 0.00666229846, -0.347201765, -0.163342625], [-0.280115515, 0.00397954974, -0.187633425, -0.149960861], [-0.689287364, -0.403422952, 0.827028751, -0.335616618], [-0.527046919, 0.168663159, 0.703636109, -0.727012157], [-0.104260921, -0.31602627, -0.880509734, 0.36746335], [-0.0117219593, 0.0357209221, -0.376155734, 0.227392077], [-0.269648671, -0.0714516044, -0.554130375, -0.608051359], [0.667765915, -0.253552347, 0.145840183, -0.0168952178], [-0.220572606, -0.253980488, 0.315041304, -0.150933802], [-0.0757218227, 0.0111107789, 0.588254154, 0.340255499], [0.191300139, -0.281785697, -0.690984368, 0.474764973], [0.483223557, -7.035420e-02, 0.270941913, 0.39072153], [0.415592223, 0.46069175, -0.227808818, 0.757486462], [-0.623296558, 0.430861533, 0.246966034, 0.43680957], [0.939504146, 0.742222726, -0.572588444, -0.844335794]]> : tensor<16x4xf32>
    %cst_4 = stablehlo.constant dense<[0.408444524, -0.507506192, -0.00620269449, 0.419863731]> : tensor<4xf32>
    %0 = stablehlo.dot_general %arg0, %cst_1, contracting_dims = [1] x [0] : (tensor<1x8xf32>, tensor<8x16xf32>) -> tensor<1x16xf32>
    %1 = stablehlo.broadcast_in_dim %cst_2, dims = [1] : (tensor<16xf32>) -> tensor<1x16xf32>
    %2 = stablehlo.add %0, %1 : tensor<1x16xf32>
    %3 = call @relu(%2) : (tensor<1x16xf32>) -> tensor<1x16xf32>
    %4 = stablehlo.dot_general %3, %cst_3, contracting_dims = [1] x [0] : (tensor<1x16xf32>, tensor<16x4xf32>) -> tensor<1x4xf32>
    %5 = stablehlo.broadcast_in_dim %cst_4, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
    %6 = stablehlo.add %4, %5 : tensor<1x4xf32>
    %7 = stablehlo.reduce(%6 init: %cst_0) applies stablehlo.maximum across dimensions = [1] : (tensor<1x4xf32>, tensor<f32>) -> tensor<1xf32>
    %8 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %9 = stablehlo.maximum %8, %7 : tensor<1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0] : (tensor<1xf32>) -> tensor<1x1xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<1x4xf32>
    %12 = stablehlo.subtract %6, %11 : tensor<1x4xf32>
    %13 = stablehlo.exponential %12 : tensor<1x4xf32>
    %14 = stablehlo.reduce(%13 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<1x4xf32>, tensor<f32>) -> tensor<1xf32>
    %15 = stablehlo.broadcast_in_dim %14, dims = [0] : (tensor<1xf32>) -> tensor<1x1xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<1x4xf32>
    %17 = stablehlo.divide %13, %16 : tensor<1x4xf32>
    return %17 : tensor<1x4xf32>
  }
  func.func private @relu(%arg0: tensor<1x16xf32> loc(unknown)) -> tensor<1x16xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<1x16xf32>
    return %1 : tensor<1x16xf32>
  }
}
