"""The everyday words that the tiny Thinker speaks, as far as each is one token of Qwen's vocabulary."""

ENGLISH = """
about above across after again air all almost along already also always and animal answer any apple are area arm around
art ask at autumn away baby back ball bank beach bear beautiful because bed bee before begin behind bell below best
better between big bird blue board boat body book bottle box boy branch bread break breakfast bridge bright bring
brother brown build bus but butter buy cake call camera can candle car care carry castle cat chair change chapter
cheese child city class clean clear clock close cloud coat coffee cold color come common cook cool copper corner could
country course cow cream cross cup dance dark day deep desk dinner dish distance doctor dog door down dream dress drink
drive dry each ear early earth east easy eat edge egg eight empty end engine enough even evening ever every example eye
face fall family far farm fast father few field find fine fire first fish five floor flower fly follow food foot for
forest forget fork forward four free fresh friend from front fruit full game garden gate gentle gift girl give glad
glass go gold good grain grass great green grow guitar hair half hall hand happy hard hat have hear heart heavy hello
help her here high hill him his history hold home honey horse hot hour house how hundred ice idea if important in
inside island it job join journey juice jump just keep key kind king kitchen know lake lamp land language large last
late laugh lead leaf learn leave left lemon letter library life light like line lion list listen little live long look
lot love low lunch machine make man many map market may me meal mean meet metal middle milk minute mirror money month
moon more morning most mother mountain mouse mouth move much music must my name nature near neck need never new news
next nice night nine no north nose not note nothing now number ocean of off office often oil old on once one only open
or orange order other our out outside over own page paint paper park part party pass past path peace pen people pepper
perhaps phone piano picture piece place plan plane plant plate play please pocket point pool poor present pretty price
problem promise proud public pull push put queen question quick quiet rain read ready real red remember rest return
rice rich ride right ring rise river road rock roof room rose round run safe sail salt same sand say school science
sea season seat second see seed sell send sentence seven shade shape she ship shirt shoe shop short should show side
silver simple sing sister sit six skin sky sleep slow small smile snow so soft some son song soon sound soup south
space speak spring square stand star start station stay step still stone stop store storm story street strong student
study sugar summer sun sure sweet swim table take talk tall taste tea teach tell ten test than thank that the their
them then there these they thing think this those thought thousand three through ticket time tiny to today together
tomorrow too top touch town train travel tree trip true try turn two under until up us use valley very village visit
voice wait walk wall want warm wash watch water wave way we wear weather week welcome well west what wheel when where
which while white who why wide will win wind window wine winter wire wish with without woman wonder wood word work
world would write year yellow yes yesterday yet you young your zero
"""

CHINESE = """
我们 你们 他们 大家 朋友 老师 学生 学校 孩子 妈妈 爸爸 家庭 家里 房子 房间 花园 城市 街道 公园 商店 市场 医院 图书馆
办公室 今天 明天 昨天 现在 以后 以前 早上 晚上 中午 下午 春天 夏天 秋天 冬天 时间 时候 小时 分钟 星期 天气 太阳 月亮
星星 天空 大海 海洋 河流 山 水 火 风 雨 雪 花 草 树 森林 动物 植物 狗 猫 鸟 鱼 马 牛 羊 苹果 水果 蔬菜 米饭 面包
牛奶 咖啡 茶 鸡蛋 早餐 午餐 晚餐 音乐 电影 电视 电话 手机 电脑 照片 故事 小说 书 报纸 文字 语言 中文 英文 数字 问题
答案 工作 学习 生活 旅游 旅行 运动 游戏 比赛 唱歌 跳舞 跑步 走路 开车 飞机 火车 汽车 自行车 船 红色 蓝色 绿色 黄色
白色 漂亮 美丽 快乐 高兴 幸福 安静 简单 容易 重要 新鲜 温暖 干净 知道 喜欢 希望 觉得 认为 告诉 帮助 开始 结束 准备
需要 可以 应该 可能 一定 非常 真的 已经 还是 但是 因为 所以 如果 然后 一起 自己 世界 地方 东西 方法 声音 颜色 味道
衣服 礼物 桌子 椅子 窗户 大门 一个 两个 三 四 五 六 七 八 九 十 的 了 在 是 有 和 很 都 也 好 大 小 多 少 长 高 新
老 上 下 里 外 前 后 左 右 东 西 南 北 来 去 看 听 说 读 写 吃 喝 买 走 坐 站 想 爱 给 用 做 问
"""
