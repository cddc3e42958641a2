"""Frames of abstracts for the `expansion` form."""

from __future__ import annotations

from flowzoo.envs.tasks.writing.templates import TextTemplate, gaps

SENSORS = TextTemplate(
    gaps(
        subject="bees/bats/salmon/storks/earthworms/seals",
        place="orchards/river deltas/city parks/mountain valleys/salt marshes",
        threat="pesticides/street lighting/drought/traffic noise/invasive plants",
        device="acoustic sensors/radio tags/thermal cameras/pressure loggers",
        count="forty/sixty/ninety/one hundred and twenty",
        seasons="two/three/four/five",
        model="a hidden Markov model/a random forest/a Bayesian network/a graph neural network",
        outcome="activity falls by a third/routes become longer/breeding starts later/groups "
        "become smaller",
    ),
    "Populations of {subject} in {place} are declining, and {threat} are suspected, but evidence "
    "is scarce because counts by hand are rare and disturb the animals. We installed {count} "
    "{device} in {place} and recorded {subject} for {seasons} seasons without interruption. "
    "{model} separates the signals of {subject} from weather and noise, and a paired design "
    "compares sites with and without {threat}. We find that {outcome} where {threat} are present, "
    "that the effect is strongest at night, and that it disappears within weeks when the exposure "
    "ends. Data, labels and code are published. The study suggests that short protected periods "
    "could help {subject} more than larger protected areas.",
    "Populations of {subject} have been declining in many regions, and {place} are no exception. "
    "Over the years several causes have been suspected, above all {threat}, yet solid evidence is "
    "still scarce. One reason is the way in which animals are usually observed. Counts by hand "
    "are rare, they depend on the weather and on the observer, and they disturb the very animals "
    "they are meant to protect. As a result, most surveys of {subject} say little about the night "
    "or about the weeks between two visits. In addition, sites with {threat} often differ from "
    "other sites in many respects, so that simple comparisons mislead. Whether short protected "
    "periods would help, or whether larger protected areas are needed, is therefore an open "
    "question. Answering it requires continuous signals from {place} over several seasons, and a "
    "design that separates the effect of the exposure from everything else.",
    "To close this gap, we installed {count} {device} in {place} and recorded {subject} for "
    "{seasons} seasons without interruption. First, sites were arranged in pairs: one site of "
    "each pair is exposed to {threat}, whereas the other is as similar as possible but without "
    "exposure. This paired design removes differences in soil, altitude and weather, because both "
    "members of a pair share them. Second, the recorded signals had to be separated from noise. "
    "For this step we train {model} on labels that two people assigned independently, and we "
    "check its decisions on seasons it has never seen. Then activity at night and by day is "
    "estimated for every site and week, together with an interval that says how certain the "
    "estimate is. Finally, we compare both members of each pair before, during and after an "
    "exposure, so that an effect which disappears when {threat} end can be told apart from a "
    "lasting one. If a recorder failed, its weeks were left out for both sites. Data, labels and "
    "code are published, for example the scripts that produce every figure, and therefore each "
    "step of the study can be repeated by others or applied to other populations of {subject} and "
    "to other protected areas. All decisions about the analysis were written down before the "
    "first season began.",
)
MATERIALS = TextTemplate(
    gaps(
        material="concrete/glass foam/bamboo panels/clay bricks/recycled steel",
        use="bridges/schools/harbour walls/bicycle tunnels/water towers",
        additive="rice husk ash/crushed shells/basalt fibres/paper sludge/volcanic dust",
        flaw="cracks/corrosion/frost damage/salt damage",
        test="freezing cycles/salt baths/bending tests/vibration tests",
        share="five/eight/twelve/fifteen",
        gain="twice as long/a third longer/half as long again",
        partner="a local workshop/two shipyards/a brick factory/a railway company",
    ),
    "{material} is a common material for {use}, yet {flaw} shorten its service life and repairs "
    "are expensive. We study whether {additive}, a waste that is burned or dumped today, can "
    "delay {flaw}. Together with {partner} we produced samples with different contents of "
    "{additive} and exposed them to {test} for eighteen months. Samples with {share} percent of "
    "{additive} lasted {gain} as the control, while strength and price stayed the same; higher "
    "contents made the material brittle. Microscope images show that fine particles fill the "
    "pores through which water enters. A pilot at one of the {use} confirms the laboratory "
    "results. The recipe needs no new machines and could turn a local waste into a resource.",
    "{material} is one of the most common materials for {use}, since it is cheap, strong and "
    "known to every builder. Its weakness shows only after years: {flaw} shorten the service "
    "life, and repairs are expensive because the structure has to be closed meanwhile. The damage "
    "usually starts when water enters through fine pores, so that much research has looked for "
    "ways to fill them. Many of the proposed coatings work well in the laboratory; however, they "
    "need new machines, or they raise the price, and therefore builders rarely adopt them. At the "
    "same time {additive} is produced in large amounts as a waste, which is burned or dumped "
    "today although its particles are fine enough to fill pores. Whether such a waste can delay "
    "{flaw} without making the material brittle has not been studied for long exposures, and "
    "results from a real pilot are missing altogether.",
    "Our method has three parts. First, together with {partner} we produced samples of {material} "
    "with different contents of {additive}, from none at all, which is the control, up to a "
    "content at which the mixture could hardly be worked. All other ingredients, the water and "
    "the time of hardening stayed the same, so that any difference between samples is due to the "
    "additive alone. Second, the samples were exposed to {test} for eighteen months. Every month "
    "we measured strength and weight, counted visible {flaw} and took microscope images of thin "
    "slices, because these show whether fine particles really fill the pores through which water "
    "enters. The person who counted did not know the recipe of a sample. Third, the best recipe "
    "was used in a pilot at one of the {use}: one half was built with the additive, the other "
    "half without, and both are inspected in the same way as the samples. In addition we asked "
    "for the price of every ingredient, since a recipe that is strong but expensive would not be "
    "adopted. Finally, service life is estimated from the month in which {flaw} first exceed a "
    "limit that was fixed before the study began; if a sample never reached the limit, it enters "
    "the estimate as still intact. No new machines were needed for any step, and the recipe with "
    "{share} percent was repeated on another day.",
)
LEARNING = TextTemplate(
    gaps(
        pupils="nursing students/primary pupils/apprentices/adult learners/exchange students",
        skill="mental arithmetic/vocabulary/reading scores/map reading/first aid",
        habit="cramming/rereading/highlighting/copying notes",
        remedy="short quizzes/peer teaching/spaced exercises/spoken summaries",
        length="six/nine/twelve/fifteen",
        schools="eight/eleven/fourteen/twenty",
        effect="remember more after a month/make half the errors/answer faster/ask new questions",
        tool="a phone application/a paper booklet/a radio programme/a card game",
    ),
    "Most {pupils} prepare for tests in {skill} by {habit}, which feels effective and is soon "
    "forgotten. We ask whether {remedy}, delivered by {tool}, lead to learning that lasts. In a "
    "randomised trial at {schools} schools, classes of {pupils} used either {remedy} or their "
    "usual {habit} for {length} weeks, with the same time on the task and the same teachers. "
    "Tests of {skill} were given at once, after a month and after half a year. Classes with "
    "{remedy} {effect}, although they felt less confident at the first test. Weak learners gained "
    "most. The costs are small, and teachers needed only one hour of training. We discuss why "
    "feelings of learning mislead and how lessons could be planned around delayed tests.",
    "Most {pupils} prepare for tests in {skill} by {habit}. The habit feels effective, since "
    "everything seems familiar on the evening before the test; however, what was learned in this "
    "way is soon forgotten. Psychologists have known for a century that feelings of learning "
    "mislead: what is easy today feels mastered, even though it cannot be recalled after a month. "
    "Many remedies have therefore been proposed, for example {remedy}, which ask learners to "
    "produce an answer instead of looking at one. Yet most of the evidence comes from "
    "laboratories, where tests follow within a day and the learners are volunteers. In ordinary "
    "classes the time is short, teachers have little training, and weak learners may lose "
    "confidence when a task feels hard. Whether the remedies work under such conditions, and "
    "whether their effect lasts for half a year, is not known.",
    "We answer this question with a randomised trial. First, {schools} schools agreed to take "
    "part, and in each of them classes of {pupils} were assigned by lot either to {remedy} or to "
    "their usual {habit}. Both groups spent the same time on the task and had the same teachers, "
    "so that a difference between them cannot be due to effort or to a better teacher. For "
    "{length} weeks the exercises were delivered by {tool}, because this needs only one hour of "
    "training and the costs are small. Second, tests of {skill} were given three times: at once, "
    "after a month and after half a year. The delayed tests contain new questions, otherwise "
    "learners could simply remember the old ones. Before each test everybody also wrote down how "
    "confident they felt, which shows whether feelings and results agree. Then the answers were "
    "marked by people who did not know the group. Finally, we estimate the effect for all "
    "learners and separately for weak learners, who had been named on the basis of an earlier "
    "test. If a learner missed a test, it was repeated within a week; the few who left the school "
    "are counted with the group they were assigned to. The plan of the analysis was published "
    "before the lessons began, and classes that had used {habit} received the other material "
    "after the trial.",
)
ABSTRACTS = (SENSORS, MATERIALS, LEARNING)
